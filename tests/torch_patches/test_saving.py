"""What trains in too little room can be saved there and resumed, and nothing else is disturbed."""

import copy
import gc
import io
import itertools
import pickle
import threading
import weakref

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from support.devices import D0, D1, device_module, device_name
from support.paths import PROGRAMS
from support.pressure import (  # noqa: F401
    PRESSURES,
    MiB,
    assert_equal,
    mlp,
    module_on,
    moved,
    nothing_left,
    on,
    pressed,
    sized,
    snapshot,
    spill,
)
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor

pytestmark = pytest.mark.filterwarnings(
    # torch.distributed.checkpoint without a process group says so.
    "ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning",
    "ignore:TypedStorage is deprecated:UserWarning",
)


# ---- programs


class Words(nn.Module):
    """GPT-2 of two layers, as a function of words to logits, with tied embeddings."""

    def __init__(self):
        super().__init__()
        transformers = pytest.importorskip("transformers")
        self.gpt2 = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            )
        )  # fmt: skip

    def forward(self, words):
        return self.gpt2(input_ids=words).logits


MODELS = {
    "MLP": (lambda: mlp(256, 4), lambda: torch.randn(32, 256)),
    "GPT-2": (Words, lambda: torch.randint(0, 256, (4, 16))),
}


class Run:
    """A model that trains on sim:0 with AdamW."""

    def __init__(self, name, seed=0):
        torch.manual_seed(seed)
        self.model = module_on(MODELS[name][0]())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        torch.manual_seed(7)
        self.batches = [MODELS[name][1]().to(D0) for _ in range(4)]

    def steps(self, first, last):
        losses = []
        for batch in self.batches[first:last]:
            self.optimizer.zero_grad()
            loss = self.model(batch.as_subclass(ManagedTensor)).float().square().mean()
            loss.backward()
            self.optimizer.step()
            losses.append(snapshot(loss))
        return losses

    def state(self):
        found = [snapshot(p) for p in self.model.parameters()]
        for state in self.optimizer.state.values():
            found += [snapshot(t) for t in state.values()]
        return found


def used():
    return device_module.memory_allocated(0)


@pytest.fixture(scope="module")
def uninterrupted():
    """Of each program: losses and state after four steps, and the peak."""
    known = {}

    def of(name):
        if name not in known:
            gc.collect()
            before = used()
            device_module.reset_peak_memory_stats(0)
            run = Run(name)
            losses = run.steps(0, 4)
            peak = device_module.max_memory_allocated(0) - before
            known[name] = losses, run.state(), peak
        return known[name]

    return of


# ---- ways to keep a state


def with_torch(run, folder):
    state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    torch.save(state, folder / "state.pt")

    def load(other):
        loaded = torch.load(folder / "state.pt", weights_only=True, map_location="cpu")
        other.model.load_state_dict(loaded["model"])
        other.optimizer.load_state_dict(loaded["optimizer"])

    return load


def with_torch_legacy(run, folder):
    state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    torch.save(state, folder / "state.pt", _use_new_zipfile_serialization=False)

    def load(other):
        loaded = torch.load(folder / "state.pt", weights_only=True, map_location="cpu")
        other.model.load_state_dict(loaded["model"])
        other.optimizer.load_state_dict(loaded["optimizer"])

    return load


def with_pickle(run, folder):
    values = pickle.dumps((run.model.state_dict(), run.optimizer.state_dict()))

    def load(other):
        model, optimizer = pickle.loads(values)
        other.model.load_state_dict(model)
        other.optimizer.load_state_dict(optimizer)

    return load


def with_safetensors(run, folder):
    safetensors.torch.save_model(run.model, str(folder / "model"))
    torch.save(run.optimizer.state_dict(), folder / "optimizer.pt")

    def load(other):
        safetensors.torch.load_model(other.model, str(folder / "model"))
        loaded = torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu")
        other.optimizer.load_state_dict(loaded)

    return load


def with_deepcopy(run, folder):
    model = copy.deepcopy(run.model)
    states = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))

    def load(other):
        other.model.load_state_dict(states[0])
        other.optimizer.load_state_dict(states[1])
        assert_equal(
            [*map(snapshot, model.parameters())], [*map(snapshot, other.model.parameters())]
        )

    return load


def with_dcp(run, folder):
    def state_of(run):
        found = {f"model.{k}": v for k, v in run.model.state_dict().items()}
        for i, state in run.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{i}.{k}": v for k, v in state.items()}
        return found

    dcp.save(state_of(run), checkpoint_id=folder / "dcp", no_dist=True)

    def load(other):
        names = run.optimizer.state_dict()
        empty = {i: dict(state) for i, state in names["state"].items()}
        other.optimizer.load_state_dict(
            {
                "param_groups": names["param_groups"],
                "state": {
                    i: {k: torch.zeros(v.shape) for k, v in state.items()}
                    for i, state in empty.items()
                },
            }
        )
        dcp.load(state_of(other), checkpoint_id=folder / "dcp", no_dist=True)

    return load


WAYS = {
    way.__name__.removeprefix("with_"): way
    for way in (
        with_torch, with_torch_legacy, with_pickle, with_safetensors, with_deepcopy, with_dcp
    )
}  # fmt: skip


@pytest.mark.parametrize("fraction", [1.0, 0.6, 0.4])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_resumed_is_uninterrupted(way, name, fraction, uninterrupted, tmp_path):
    losses, state, peak = uninterrupted(name)
    with managed.budget(D0, used() + int(fraction * peak)):
        run = Run(name)
        found = run.steps(0, 2)
        load = WAYS[way](run, tmp_path)
        assert_equal(losses[:2], found)
        other = Run(name, seed=1)
        load(other)
        del run, load
        found += other.steps(2, 4)
        assert_equal(losses, found)
        assert_equal(state, other.state())


@pytest.mark.parametrize("way", WAYS)
def test_who_was_saved_goes_on(way, uninterrupted, tmp_path):
    losses, state, peak = uninterrupted("MLP")
    with managed.budget(D0, used() + int(0.5 * peak)):
        run = Run("MLP")
        found = run.steps(0, 2)
        kept = WAYS[way](run, tmp_path)
        found += run.steps(2, 4)
        del kept
        assert_equal(losses, found)
        assert_equal(state, run.state())


# ---- what a saver holds


@pytest.mark.not_under_torture("it counts what leaves")
@pytest.mark.parametrize("save", [torch.save, pickle.dump], ids=["save", "pickle"])
def test_nothing_moves_to_be_saved(save):
    """Bytes are read where they are: on the device, on a peer, on the host."""
    with managed.budget(D0, used() + 50 * MiB):
        weights = [sized(20, float(i)) for i in range(4)]
        away = [_C.is_spilled(w) for w in weights]
        assert sum(away) == 2
        host = _C.host_memory()["used"]
        with moved() as counts:
            save(weights, io.BytesIO())
        assert all(counts[kind] == 0 for kind in ("spill", "drop", "restore"))
        assert [_C.is_spilled(w) for w in weights] == away
        assert _C.host_memory()["used"] == host
        assert [w[3].item() for w in weights] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("save", [torch.save, pickle.dump], ids=["save", "pickle"])
def test_one_copy_at_a_time_is_on_the_host(save, monkeypatch):
    alive, most = weakref.WeakSet(), []
    original = torch.UntypedStorage.cpu

    def cpu(self):
        made = original(self)
        alive.add(made)
        most.append(len(alive))
        return made

    monkeypatch.setattr(torch.UntypedStorage, "cpu", cpu)
    weights = [sized(2, float(i)) for i in range(5)]
    spill(*weights)
    save(weights, io.BytesIO())
    assert len(most) == 5
    assert max(most) <= 2  # the next is made before the name of the last is given another value


def test_what_a_saver_holds_may_leave():
    x = sized(1)
    function, arguments = x.__reduce_ex__(2)
    spill(x)
    y = function(*arguments)  # a plain tensor would not find its bytes
    assert isinstance(y, ManagedTensor)
    spill(x, y)
    y[3] = 7.0
    assert x[3].item() == 7.0


def test_a_shallow_copy_is_plain_and_keeps_its_bytes():
    x = sized(1)
    spill(x)
    alias = copy.copy(x)
    assert not isinstance(alias, ManagedTensor)
    assert alias[3].item() == 1.0


USES = {
    "item": lambda s: s[3],
    "write": lambda s: s.__setitem__(3, 0),
    "fill": lambda s: s.fill_(0),
    "copy": lambda s: s.copy_(torch.UntypedStorage(s.nbytes(), device=s.device)),
    "address": lambda s: s.data_ptr(),
    "resize": lambda s: s.resize_(s.nbytes() + 4),
    "to a device": lambda s: s.to(device=D1),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_any_other_use_makes_it_the_programs(use):
    x = sized(1)
    storage = x.__reduce_ex__(2)[1][0]._untyped_storage
    spill(x)
    kept = use(storage)
    _C.spill_all()
    assert not _C.is_spilled(x)
    del storage, kept
    spill(x)


def test_what_the_program_holds_stays_while_it_is_saved():
    x = sized(1, 2.0)
    storage = x.untyped_storage()
    file = io.BytesIO()
    torch.save(x, file)
    _C.spill_all()
    assert not _C.is_spilled(x)
    storage.fill_(0)
    assert x.sum().item() == 0
    del storage
    spill(x)
    file.seek(0)
    assert torch.load(file, map_location="cpu").sum().item() == 2.0 * x.numel()


def test_a_program_that_asks_later_has_it():
    x = sized(1)
    saved = x.__reduce_ex__(2)
    storage = x.untyped_storage()
    del saved
    _C.spill_all()
    assert not _C.is_spilled(x)
    del storage
    spill(x)


def test_a_deep_copy_keeps_views_of_one_storage():
    x = sized(1)
    views = [x[:8], x[4:12].view(2, 4)]
    spill(x)
    copies = copy.deepcopy(views)
    assert all(isinstance(c, ManagedTensor) for c in copies)
    assert copies[0].untyped_storage()._cdata == copies[1].untyped_storage()._cdata
    copies[0].fill_(5.0)
    assert copies[1][0].tolist() == [5.0] * 4
    assert x.sum().item() == x.numel()


def test_deep_copies_leave_before_all_are_made():
    with managed.budget(D0, used() + 50 * MiB):
        kept = [sized(20, float(i)) for i in range(3)]
        copies = copy.deepcopy(kept)
        assert [t[7].item() for t in (*kept, *copies)] == [0.0, 1.0, 2.0] * 2
        large = copy.deepcopy(sized(10, 4.0).repeat(4))  # of 40 MiB two do not fit together
        assert large.sum().item() == 4.0 * large.numel()


def test_a_deep_copy_without_room_says_who_holds_what():
    with managed.budget(D0, used() + 50 * MiB):
        x = sized(30)
        held = x.untyped_storage()
        with pytest.raises(managed.OutOfMemoryError) as caught:
            copy.deepcopy(x)
        text = str(caught.value)
        del held, caught
        assert "30 MiB whose storages the program holds" in text
        assert "map_location" not in text


@pytest.mark.parametrize("pressure", PRESSURES)
def test_saved_while_everything_leaves(pressure):
    """Bytes that are on their way are waited for, and what is read in place stays there."""
    values = [torch.randn(2**14) for _ in range(6)]

    def work():
        kept = [on(v) for v in values]
        for _ in range(5):
            file = io.BytesIO()
            torch.save(kept, file)
            copies = copy.deepcopy(kept)
            for found in (torch.load(io.BytesIO(file.getvalue()), map_location="cpu"), copies):
                assert all(torch.equal(f.cpu(), v) for f, v in zip(found, values, strict=True))
        return kept

    for t, v in zip(pressed(pressure, work), values, strict=True):
        assert torch.equal(t.cpu(), v)


def test_one_thread_saves_what_another_uses():
    values = [torch.randn(2**14) for _ in range(4)]
    kept = [on(v) for v in values]
    failed = []

    def use():
        try:
            for _ in range(100):
                assert all(torch.equal((t + 0).cpu(), v) for t, v in zip(kept, values, strict=True))
        except BaseException as error:
            failed.append(error)

    with managed.budget(D0, used() - 2 * kept[0].nbytes + 100):
        thread = threading.Thread(target=use)
        thread.start()
        while thread.is_alive():
            file = io.BytesIO()
            torch.save(kept, file)
            found = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
            assert all(torch.equal(f, v) for f, v in zip(found, values, strict=True))
        thread.join()
    assert not failed, failed


# ---- addresses


def test_tensors_that_took_each_others_place_are_not_shared(tmp_path):
    """Both were at one address when it was asked, one after the other."""
    with managed.budget(D0, used() + 12 * MiB):
        state = {name: sized(8, float(i)) for i, name in enumerate("abc")}
        safetensors.torch.save_file(state, str(tmp_path / "state"))
        found = safetensors.torch.load_file(str(tmp_path / "state"))
        assert sorted(found) == ["a", "b", "c"]
        assert [found[name][5].item() for name in "abc"] == [0.0, 1.0, 2.0]
        torch.save({**state, "i": sized(8, 3.0).view(torch.int32)}, io.BytesIO())


def test_what_is_shared_is_found(tmp_path):
    x = sized(1)
    for state, says in (
        ({"a": x, "b": x}, "share memory"),
        ({"a": x[:64], "b": x[32:96]}, "share memory"),
    ):
        spill(x)
        with pytest.raises(RuntimeError, match=says):
            safetensors.torch.save_file(state, str(tmp_path / "state"))
        spill(x)  # nothing was pinned by asking


def test_addresses_pin_for_others():
    x = sized(1)
    assert x.data_ptr() == x.untyped_storage().data_ptr()
    _C.spill_all()
    assert not _C.is_spilled(x)


# ---- failures


def test_a_failed_save_leaves_nothing_behind(uninterrupted):
    """Not even what the exception and its traceback hold counts."""
    losses, state, peak = uninterrupted("MLP")
    with managed.budget(D0, used() + int(0.4 * peak)):
        run = Run("MLP")
        found = run.steps(0, 2)
        gc.disable()
        try:
            with pytest.raises((OSError, RuntimeError)) as caught:
                torch.save([run.model.state_dict(), run.optimizer.state_dict()], Broken())
            found += run.steps(2, 4)
        finally:
            gc.enable()
        del caught
        assert_equal(losses, found)
        assert_equal(state, run.state())


class Broken(io.BytesIO):
    def write(self, data):
        if len(data) > 1000:
            raise OSError("no space left")
        return super().write(data)


@pytest.mark.parametrize("fault", ["fail_copy", "fail_allocation"])
@pytest.mark.parametrize(
    "save",
    [
        lambda run: torch.save([run.model.state_dict(), run.optimizer.state_dict()], io.BytesIO()),
        lambda run: copy.deepcopy(run.optimizer.state_dict()),
        lambda run: run.optimizer.load_state_dict(
            {
                "param_groups": run.optimizer.state_dict()["param_groups"],
                "state": {
                    i: {k: v.cpu() for k, v in state.items()}
                    for i, state in run.optimizer.state_dict()["state"].items()
                },
            }
        ),
    ],
    ids=["save", "deepcopy", "load"],
)
def test_every_fault_loses_nothing(save, fault, uninterrupted):
    losses, state, peak = uninterrupted("MLP")
    with managed.budget(D0, used() + int(0.5 * peak)):
        run = Run("MLP")
        run.steps(0, 2)
        before = run.state()
        failed = 0
        for n in itertools.count(1, 3):
            with managed.debug.torture(odds=None, **{fault: n}) as torture:
                try:
                    save(run)
                except (RuntimeError, torch.OutOfMemoryError):
                    failed += 1
            if not torture.failures:
                break
        assert_equal(before, run.state())
        assert_equal(losses[2:], run.steps(2, 4))
        assert_equal(state, run.state())


# ---- loading


def test_loading_what_does_not_fit_says_who_holds_what(tmp_path):
    torch.save(torch.ones(15 * MiB), tmp_path / "file")
    with managed.budget(D0, used() + 50 * MiB):
        kept = sized(5)
        with pytest.raises(managed.OutOfMemoryError) as caught:
            torch.load(tmp_path / "file", map_location=D0)
        text = str(caught.value)
        del caught
        gc.collect()
        assert f"{D0} out of memory. Tried to allocate 60.0 MiB" in text
        assert "\n  host: " in text
        assert 'map_location="cpu"' in text
        assert kept.sum().item() == kept.numel()


def test_states_that_were_loaded_leave():
    run = Run("MLP")
    run.steps(0, 2)
    file = io.BytesIO()
    torch.save(run.optimizer.state_dict(), file)
    file.seek(0)
    run.optimizer.load_state_dict(torch.load(file, map_location="cpu"))
    states = list(run.optimizer.state.values())
    assert all(isinstance(s["exp_avg"], ManagedTensor) for s in states)
    assert not any(isinstance(s["step"], ManagedTensor) for s in states)
    spill(*(s["exp_avg"] for s in states if s["exp_avg"].dim() == 2))


def test_a_checkpoint_of_four_devices_is_loaded_everywhere(run_python, tmp_path):
    """On one device, on two, on the CPU; where a device is missing the error says what to do."""
    plain = mlp(64, 4)
    net = ManagedModule.from_module(copy.deepcopy(plain))
    for i, layer in enumerate(net):
        layer.to(device_name(i // 2))
    torch.save(net.state_dict(), tmp_path / "state.pt")
    torch.save(net, tmp_path / "net.pt")
    tags = {str(t.device) for t in torch.load(tmp_path / "state.pt").values()}
    assert tags == {device_name(i) for i in range(4)}
    torch.save((plain.state_dict(), plain(torch.ones(2, 64)).detach()), tmp_path / "plain.pt")
    script = PROGRAMS / "loaded_elsewhere.py"
    for devices, says in (
        (0, "call managed.simulate() first"),
        (1, "use torch.load with map_location"),
        (2, "use torch.load with map_location"),
    ):
        text = run_python(script, tmp_path, devices)
        assert says in text
        assert "map_location" in text
