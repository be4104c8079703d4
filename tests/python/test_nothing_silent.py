"""What a program gets wrong, or might, is said: where it stands, and what to do instead."""

import gc
import warnings

import pytest
import torch
from support.devices import D0, D1, D3, DEVICE_TYPE, device_module
from support.pressure import MiB, on, sized
from torch import nn

import managed
from managed import DeviceManager, ManagedModule, ManagedTensor, device_manager

# ---- disperse=


@pytest.mark.parametrize("value", ["layer", "", "parameters", None, 2, [True]])
def test_a_tensor_is_dispersed_or_not(value):
    x = torch.rand(4).as_subclass(ManagedTensor)
    with pytest.raises(ValueError, match="disperse is True or False here, not"):
        x.cuda(disperse=value)
    with pytest.raises(ValueError, match="disperse is True or False here, not"):
        device_manager.find_device(4, disperse=value)
    assert x.device.type == "cpu"


@pytest.mark.parametrize("value", ["layer", "", None, 2])
def test_an_unknown_way_of_a_nest(value):
    net = ManagedModule.from_module(nn.Linear(2, 2))
    for obj in (torch.rand(4), net, [torch.rand(4), net]):
        with pytest.raises(ValueError, match="disperse is"):
            device_manager.cuda(obj, disperse=value)
    with pytest.raises(ValueError, match="disperse is"):
        net.cuda(disperse=value)
    assert net.weight.device.type == "cpu"


@pytest.mark.usefixtures("level_devices")
@pytest.mark.parametrize("value", [True, 1, "layers", "parameters"])
def test_a_known_way_reaches_the_modules_of_a_nest(value):
    net = ManagedModule.from_module(nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4))))
    x, placed = DeviceManager(reserved=0.0).cuda((torch.rand(4), net), disperse=value)
    assert placed is net
    assert x.device.type == DEVICE_TYPE
    devices = {p.device for p in net.parameters()}
    assert {d.type for d in devices} == {DEVICE_TYPE}
    assert value == "parameters" or len(devices) == 4  # layers over all there are


# ---- budgets


@pytest.mark.parametrize(("size", "said"), [("50", "'50' is 50 bytes"), (" 4096 ", "4096 bytes")])
def test_a_budget_without_a_unit_is_bytes_and_warns(size, said):
    with pytest.warns(UserWarning, match=said) as caught:
        budget = managed.budget(D3, size)
    with budget:
        assert managed.stats()["devices"][D3]["capacity"] == int(size)
    assert caught[0].filename == __file__
    assert f"'{size.strip()}MiB'" in str(caught[0].message)


@pytest.mark.parametrize("size", [50, "50B", "50%", "1.5MiB", "4096 B", None])
def test_a_budget_with_a_unit_or_a_number_does_not(size):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with managed.budget(D3, size):
            pass


# ---- simulate()


def test_the_same_simulation_again_is_fine():
    torch.ones(1, requires_grad=True).backward()
    managed.simulate(devices=4, memory="256MiB")
    managed.simulate(devices=4, memory=[256 * MiB] * 4)
    assert device_module.device_count() == 4
    for other in ({"devices": 3, "memory": "256MiB"}, {"memory": "128MiB"}, {"preset": "t4"}):
        with pytest.raises(RuntimeError):
            managed.simulate(**({"devices": 4, "memory": "256MiB"} | other))


def test_a_program_may_say_what_the_environment_said(run_python):
    run_python(
        """
        import managed, torch
        managed.simulate(devices=2, memory="64MiB")
        assert torch.sim.mem_get_info(1)[1] == 64 * 2**20
        """,
        MANAGED_SIM="2x64MiB",
    )


# ---- frozen()


def apart():
    return on(torch.rand(4), D0), on(torch.rand(4), D1)


FROZEN = {
    "aten::add.Tensor": lambda a, b: a + b,
    "aten::mm": lambda a, b: a.view(2, 2) @ b.view(2, 2),
    "aten::cat": lambda a, b: torch.cat([a, b]),
    "aten::add_.Tensor": lambda a, b: a.add_(b),
    "aten::atan2": lambda a, b: torch.atan2(a, b),
}


@pytest.mark.parametrize("operator", FROZEN)
def test_frozen_says_so(operator):
    a, b = apart()
    kept = a.clone()
    with managed.frozen(), pytest.raises(RuntimeError) as caught:
        FROZEN[operator](a, b)
    assert "managed.frozen()" in str(caught.value)
    assert operator in str(caught.value)
    assert torch.equal(a, kept)
    FROZEN[operator](a, b)


def test_frozen_says_nothing_of_other_errors():
    a, _ = apart()
    with managed.frozen(), pytest.raises(RuntimeError) as caught:
        a.view(3)
    assert "frozen" not in str(caught.value)
    with managed.frozen():
        assert torch.equal((a * torch.tensor(2.0)).cpu(), a.cpu() * 2)


# ---- cuda() of what is plain


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.rand(3).cuda(),
        lambda: torch.rand(3).cuda(1),
        lambda: torch.rand(3).to("cuda"),
        lambda: torch.rand(3).to(device="cuda:0"),
        lambda: nn.Linear(2, 2).cuda(),
        lambda: nn.Linear(2, 2).to("cuda"),
    ],
)
def test_cuda_of_a_plain_tensor_has_a_hint(call):
    if torch.cuda.is_available():
        pytest.skip("plain tensors go to the CUDA device that is there")
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        call()
    assert "as_subclass(ManagedTensor)" in str(caught.value)
    first = str(caught.value).splitlines()[0].lower()
    assert "cuda" in first or (torch.version.cuda and "nvidia driver" in first)


def test_without_simulated_devices_there_is_no_hint(run_python):
    run_python("""
        import managed, torch
        if not torch.cuda.is_available():
            try:
                torch.rand(3).cuda()
            except (AssertionError, RuntimeError) as error:
                assert "managed" not in str(error)
    """)


# ---- who holds what


def failure(call):
    with pytest.raises(managed.OutOfMemoryError) as caught:
        call()
    return str(caught.value)


def row(text, device=D0):
    [found] = [line for line in text.splitlines() if line.startswith(f"  {device}:")]
    return found


@pytest.fixture
def room():
    gc.collect()
    with managed.budget(D0, device_module.memory_allocated(0) + 50 * MiB):
        yield


def test_each_reason_to_stay_has_its_name(room):
    pinned, pointed, lent = sized(8).pin(), sized(7), sized(6)
    pointed.data_ptr()
    storage = lent.untyped_storage()
    told = row(failure(lambda: sized(3).repeat(20)))
    assert "8 MiB pinned" in told
    assert "7 MiB whose pointers the program has taken" in told
    assert "6 MiB whose storages the program holds" in told
    both = sized(5).pin()
    both.data_ptr()
    told = row(failure(lambda: sized(3).repeat(20)))
    assert "13 MiB pinned" in told  # of two reasons the one that unpin() ends
    both.unpin()
    pinned.unpin()
    told = row(failure(lambda: sized(3).repeat(20)))
    assert " pinned" not in told
    assert "12 MiB whose pointers the program has taken" in told
    assert storage.nbytes() == 6 * MiB


def test_operators_that_find_no_room_have_names(room):
    kept = [sized(20) for _ in range(3)]
    held = kept[0].untyped_storage()
    text = failure(lambda: torch.cat(kept))
    assert "aten::cat needs 3 storages together, 60 MiB of them there" in text
    text = failure(lambda: torch.addcmul(*kept))
    assert "aten::addcmul needs 3 storages together, 60 MiB of them there" in text
    text = failure(lambda: kept[1].repeat(3))
    assert "(in aten::repeat)" in text
    assert held.nbytes() == 20 * MiB
