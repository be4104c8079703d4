"""A mapped file is the host's copy of what was moved out of it, until the bytes are written."""

import copy
import os
import pickle
import threading

import numpy as np
import pytest
import torch
from support.devices import D0
from support.pressure import MiB, moved, nothing_left, on, spill  # noqa: F401
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor

LAYERS, WIDTH = 12, 512
BYTES = WIDTH * WIDTH * 4  # of a weight


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights"


def net():
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def loaded(path, device=D0):
    """The saved module, moved out of the mapped file."""
    model = net()
    model.load_state_dict(torch.load(path, mmap=True), assign=True)
    return ManagedModule.from_module(model).to(device)


@pytest.fixture
def saved(path):
    plain, values = net(), torch.linspace(-0.05, 0.05, WIDTH * WIDTH).view(WIDTH, WIDTH)
    plain.load_state_dict(
        {name: values + i for i, name in enumerate(plain.state_dict())}, assign=True
    )
    torch.save(plain.state_dict(), path)
    return plain


def inputs():
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))


def host():
    return _C.host_memory()["used"]


def leave(*tensors):
    """(Bytes that were copied to make them leave, storages that left without a copy.)"""
    with moved() as found:
        spill(*tensors)
    return found.bytes("spill"), found["drop"]


@torch.no_grad()
def test_no_byte_is_written_to_the_host(path, saved):
    """Three times the device, 1.5 times what the host may keep."""
    total = LAYERS * BYTES
    budgets = managed.budget(D0, total // 3), managed.budget("cpu", 2 * total // 3)
    with budgets[0], budgets[1], moved() as found:
        model, x = loaded(path), inputs()
        for _ in range(5):  # once the steps are learned, too
            assert torch.equal(model(x).cpu(), saved(x))
    assert found["spill"] == 0
    assert found["links"][f"{D0}->cpu"] == 5 * x.nbytes  # the results
    assert found["drop"] >= 2 * LAYERS
    assert host() == 0


@torch.no_grad()
def test_bytes_that_come_back_are_read_from_the_file(path, saved):
    model, x = loaded(path), inputs()
    for _ in range(2):
        assert leave(*model.parameters()) == (0, LAYERS)
        with moved() as found:
            assert torch.equal(model(x).cpu(), saved(x))
        assert found.bytes("restore") == LAYERS * BYTES
        assert host() == 0
    assert "drop" in str(managed.explain(model[0].weight))


@torch.no_grad()
def test_written_bytes_are_copied_as_any_other(path, saved):
    model, x = loaded(path), inputs()
    model[3].weight.mul_(2)
    saved[3].weight.mul_(2)
    assert leave(*model.parameters()) == (BYTES, LAYERS - 1)
    assert host() == BYTES
    assert torch.equal(model(x).cpu(), saved(x))
    assert leave(*model.parameters()) == (0, LAYERS)  # the copy in memory is good now
    assert host() == BYTES
    assert torch.equal(model[3].weight.cpu(), saved[3].weight)


@torch.no_grad()
def test_a_write_while_the_bytes_are_away(path, saved):
    weight = loaded(path)[0].weight
    spill(weight)
    weight.add_(1)
    assert leave(weight) == (BYTES, 0)
    assert torch.equal(weight.cpu(), saved[0].weight + 1)


def test_a_custom_operator_may_write(path, saved):
    library = torch.library.Library("managed_maps", "DEF")
    library.define("total(Tensor x) -> Tensor")
    library.impl("total", lambda x: x.sum(), "CompositeExplicitAutograd")
    weight = loaded(path)[0].weight
    spill(weight)
    torch.ops.managed_maps.total(weight.detach())
    assert leave(weight) == (BYTES, 0)


def test_a_pointer_that_left_keeps_the_bytes_at_home(path, saved):
    weight = loaded(path)[0].weight
    weight.data_ptr()
    _C.spill_all()
    assert not _C.is_spilled(weight)


def test_training_after_inference(path, saved):
    model, x = loaded(path), inputs()
    with torch.no_grad():
        spill(*model.parameters())
        model(x)
    for net in (model, saved):
        optimizer = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            net[:3](x).square().mean().backward()
            optimizer.step()
            if net is model:
                _C.spill_all()
    for ours, plain in zip(model.parameters(), saved.parameters(), strict=True):
        assert torch.equal(ours.cpu(), plain)
    assert leave(*model.parameters()) == (0, LAYERS)
    assert host() == 6 * BYTES  # what was trained, and the gradients


@torch.no_grad()
def test_writes_to_what_the_program_kept_do_not_matter(path, saved):
    state = torch.load(path, mmap=True)
    model = net()
    model.load_state_dict(state, assign=True)
    model = ManagedModule.from_module(model).to(D0)
    for tensor in state.values():
        tensor.zero_()
    assert leave(*model.parameters()) == (0, LAYERS)
    assert torch.equal(model(inputs()).cpu(), saved(inputs()))


@torch.no_grad()
def test_a_map_that_was_written_is_no_copy_of_the_file(path, saved):
    state = torch.load(path, mmap=True)
    state["0.weight"][0, 0] = 7.0
    first, second = (on(state[f"{i}.weight"]) for i in range(2))
    assert leave(first, second) == (BYTES, 1)
    assert torch.equal(first.cpu(), state["0.weight"])
    assert torch.equal(second.cpu(), saved[1].weight)


def test_tensors_of_safetensors(path, saved):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(saved.state_dict(), path)
    state = safetensors.load_file(path)
    there = [on(t) for t in state.values()]
    assert leave(*there) == (0, LAYERS)
    for here, t in zip(state.values(), there, strict=True):
        assert torch.equal(t.cpu(), here)


@pytest.mark.parametrize(("mode", "copied"), [("r", 0), ("c", 0), ("r+", BYTES)])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_maps_of_numpy(path, mode, copied):
    """Not one by which the program can write the file: that is not seen."""
    values = np.arange(BYTES // 4, dtype=np.float32)
    values.tofile(path)
    array = np.memmap(path, np.float32, mode)
    there = on(torch.from_numpy(array))
    assert leave(there) == (copied, copied == 0)
    if mode == "r+":
        array[:] = 0
    assert torch.equal(there.cpu(), torch.from_numpy(values))


def test_only_whole_dense_tensors_of_the_same_kind(path):
    torch.save({"t": torch.randn(256, 256)}, path)
    t = torch.load(path, mmap=True)["t"]
    kept = [t, t.t(), t[64:192]]
    copied = [t[:, 64:192], t.double(), t.neg(), t.view(torch.int32).clone()]
    for i, here in enumerate(kept + copied):
        there = here.as_subclass(ManagedTensor).to(D0)
        assert leave(there) == ((0, 1) if i < len(kept) else (here.nbytes, 0))
        assert torch.equal(there.cpu(), here)
    there = t.as_subclass(ManagedTensor).to(D0, torch.float16)
    assert leave(there) == (t.nbytes // 2, 0)


@pytest.mark.parametrize("elements", [1, 1000, 9 * MiB])
def test_sizes(path, elements):
    """Small storages never leave; on CUDA large ones come back in pieces."""
    torch.save({"t": torch.arange(float(elements))}, path)
    there = on(torch.load(path, mmap=True)["t"])
    with moved() as found:
        _C.spill_all()
    assert (found["spill"], found["drop"]) == (0, elements > 4096)
    assert torch.equal(there.cpu(), torch.arange(float(elements)))


def test_bytes_that_are_still_on_their_way(path, saved):
    """A copy that no operator has joined yet is dropped, too."""
    here = torch.load(path, mmap=True)["1.weight"].as_subclass(ManagedTensor)
    there = here.to(D0, non_blocking=True)
    assert leave(there) == (0, 1)
    assert torch.equal(there.cpu(), here)


def test_the_switch(path, saved):
    assert managed.KEEP_MAPS is True
    before = loaded(path)
    managed.KEEP_MAPS = False
    try:
        model = loaded(path)
    finally:
        managed.KEEP_MAPS = True
    assert leave(*before.parameters(), *model.parameters()) == (LAYERS * BYTES, LAYERS)
    for wrong in (1, None, "yes"):
        with pytest.raises(TypeError, match="KEEP_MAPS"):
            managed.KEEP_MAPS = wrong


def replace(path):
    path.with_suffix(".new").write_bytes(bytes(path.stat().st_size))
    path.with_suffix(".new").rename(path)


@torch.no_grad()
@pytest.mark.parametrize("change", [os.unlink, replace])
def test_a_file_that_is_deleted_or_replaced_is_still_there(path, saved, change):
    model = loaded(path)
    spill(*model.parameters())
    change(path)
    assert torch.equal(model(inputs()).cpu(), saved(inputs()))
    assert leave(*model.parameters()) == (0, LAYERS)


def test_what_is_moved_after_the_file_was_deleted_is_copied(path, saved):
    state = torch.load(path, mmap=True)
    path.unlink()
    there = on(state["0.weight"])
    assert leave(there) == (BYTES, 0)
    assert torch.equal(there.cpu(), saved[0].weight)


def overwrite(path):
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def truncate(path):
    os.truncate(path, 1)


@torch.no_grad()
@pytest.mark.parametrize("change", [overwrite, truncate])
def test_a_file_that_is_written_while_the_bytes_are_at_home_is_no_copy(path, saved, change):
    model = loaded(path)
    change(path)
    _C.spill_all()  # finds that no copy is good
    assert leave(*model.parameters()) == (LAYERS * BYTES, 0)
    assert torch.equal(model(inputs()).cpu(), saved(inputs()))


@torch.no_grad()
def test_room_is_made_although_the_file_was_written(path, saved):
    model = loaded(path)
    overwrite(path)
    with managed.budget(D0, 4 * BYTES):
        assert torch.equal(model(inputs()).cpu(), saved(inputs()))


@torch.no_grad()
@pytest.mark.parametrize("change", [overwrite, truncate])
def test_a_file_that_is_written_while_it_has_the_only_copy_is_an_error(path, saved, change):
    model, other = loaded(path), on(torch.ones(BYTES // 4))
    spill(*model.parameters(), other)
    change(path)
    for use in (model, lambda _: model[0].weight.cpu(), lambda _: pickle.dumps(model[0].weight)):
        with pytest.raises(RuntimeError, match=f"{path} was written or truncated"):
            use(inputs())
    assert other.sum() == BYTES // 4
    assert _C.residency(D0)["in_use"] == _C.residency(D0)["moving"] == 0
    model[0].weight.data = on(torch.ones(WIDTH, WIDTH))  # a new value goes on
    assert model[0].weight.sum() == WIDTH * WIDTH


@torch.no_grad()
def test_what_is_saved_is_read_from_the_file(path, saved, tmp_path):
    model = loaded(path)
    spill(*model.parameters())
    with moved() as found:
        torch.save(model.state_dict(), tmp_path / "again")
        same = pickle.loads(pickle.dumps(model[1].weight))
    assert found["restore"] == found["spill"] == 0
    twin = copy.deepcopy(model[0].weight)
    for name, t in torch.load(tmp_path / "again", map_location="cpu").items():
        assert torch.equal(t, saved.state_dict()[name])
    assert torch.equal(twin.cpu(), saved[0].weight)
    assert torch.equal(same.cpu(), saved[1].weight)


@torch.no_grad()
def test_a_checkpoint_may_be_saved_over_the_file(path, saved):
    model = loaded(path)
    model[0].weight.mul_(2)
    saved[0].weight.mul_(2)
    spill(*model.parameters())
    link = path.with_suffix(".link")
    link.symlink_to(path)
    torch.save(model.state_dict(), link)
    assert torch.equal(model(inputs()).cpu(), saved(inputs()))
    assert link.is_symlink()
    for name, t in torch.load(path, map_location="cpu").items():
        assert torch.equal(t, saved.state_dict()[name])
    del model
    inode = path.stat().st_ino
    torch.save({}, path)  # in place, as torch does
    assert path.stat().st_ino == inode


def open_files(path):
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.lexists(link)].count(str(path))


def test_a_file_is_open_once_as_long_as_a_tensor_needs_it(path, saved):
    models = [loaded(path), loaded(path)]
    assert open_files(path) == 1
    _C.spill_all()
    del models[0]
    assert open_files(path) == 1
    models.clear()
    assert open_files(path) == 0


@torch.no_grad()
def test_threads_move_and_use_tensors_of_one_file(path, saved):
    expected, found = saved(inputs()), []

    def work():
        with torch.no_grad():
            model = loaded(path)
            found.extend(torch.equal(model(inputs()).cpu(), expected) for _ in range(4))

    with managed.budget(D0, 8 * BYTES):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 12


@torch.no_grad()
def test_under_torture(path, saved):
    with managed.debug.torture():
        assert torch.equal(loaded(path)(inputs()).cpu(), saved(inputs()))


@pytest.mark.only_simulated("CUDA does not survive a fork")
def test_a_child_reads_the_file(path, saved):
    weight = loaded(path)[0].weight
    spill(weight)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = not torch.equal(weight.detach().cpu(), saved[0].weight)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(weight.cpu(), saved[0].weight)
