"""Copies and files of modules that are over several devices."""

import copy
import io

import safetensors.torch
import torch
from support.scattered import all_managed, assert_same, changed, pair, places, scatter, step
from torch import nn

from managed import ManagedModule

# ---- copies


def test_a_deep_copy_is_on_the_same_devices_without_pins():
    plain, net = pair()
    step(plain)
    step(net)
    net.pin()
    other = copy.deepcopy(net)
    assert type(other) is type(net)
    assert places(other) == places(net)
    assert all_managed(other)
    assert other.tied.weight is other.a.weight
    assert other.a.weight is not net.a.weight
    assert not any(p.pinned for p in other.parameters())
    assert net.a.weight.pinned
    assert_same(plain, other)


def test_a_pickled_module_comes_back_on_its_devices():
    net = scatter(ManagedModule.from_module(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))))
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    assert places(other) == places(net)
    assert all_managed(other)
    assert type(other) is type(net)
    assert_same(net.cpu(), other)


def test_a_pickled_module_is_loaded_by_another_process(run_python, tmp_path):
    net = scatter(ManagedModule.from_module(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))))
    torch.save(net, tmp_path / "net.pt")
    script = """
        import sys, torch
        from managed import ManagedModule, ManagedTensor
        net = torch.load(sys.argv[1], weights_only=False, map_location="cpu")
        assert isinstance(net, torch.nn.Sequential) and isinstance(net[1], ManagedModule)
        assert all(isinstance(t, ManagedTensor) for t in net.state_dict(keep_vars=True).values())
        print(net[0].weight.double().sum().item())
    """
    total = run_python(script, tmp_path / "net.pt")
    assert float(total) == net[0].weight.double().sum().item()


# ---- files


def test_a_state_file_can_be_read_without_managed(run_python, tmp_path):
    plain, net = pair()
    optimizer = torch.optim.AdamW(net.parameters())
    step(net, optimizer)
    file = tmp_path / "state.pt"
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    assert b"managed" not in file.read_bytes()
    script = """
        import sys, torch
        state = torch.load(sys.argv[1], weights_only=True, map_location="cpu")
        assert "managed" not in sys.modules
        assert {type(t) for t in state["model"].values()} == {torch.Tensor}
        print(state["model"]["a.weight"].double().sum().item(), len(state["optimizer"]["state"]))
    """
    total, states = run_python(script, file).split()
    assert float(total) == net.a.weight.double().sum().item()
    assert int(states) == len(list(net.parameters()))
    here = torch.load(file, weights_only=True)["model"]
    assert {n: t.device for n, t in here.items()} == {
        n: t.device for n, t in net.state_dict().items()
    }
    plain.load_state_dict(torch.load(file, weights_only=True)["model"])
    assert_same(plain, net)


def test_safetensors(tmp_path):
    plain, net = pair()
    before = places(net)
    safetensors.torch.save_model(net, str(tmp_path / "model"))
    other = pair(changed)[1]
    safetensors.torch.load_model(other, str(tmp_path / "model"))
    assert places(other) == before
    assert all_managed(other)
    assert_same(plain, other)
    state = {name: t for name, t in net.state_dict().items() if name != "tied.weight"}
    safetensors.torch.save_file(state, str(tmp_path / "state"))
    read = safetensors.torch.load_file(str(tmp_path / "state"))
    assert all(torch.equal(read[name], plain.state_dict()[name]) for name in state)
