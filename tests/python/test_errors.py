"""What can be caught as what, refusals of private functions, and the reports on what happened."""

import pytest
import torch
from support.devices import D0, D1, D2, device_name

import managed
from managed import _C, ManagedTensor, errors


def test_hierarchy():
    assert issubclass(errors.OutOfMemoryError, torch.OutOfMemoryError)
    assert issubclass(errors.PinConflictError, RuntimeError)
    assert issubclass(errors.CopyWarning, UserWarning)
    for name in set(errors.__all__) - {"CopyWarning"}:
        assert issubclass(getattr(errors, name), errors.ManagedError)
    assert managed.OutOfMemoryError is errors.OutOfMemoryError


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: _C.mark(3), TypeError),
        (lambda: _C.unmark(None), TypeError),
        (lambda: _C.pin(3, True), TypeError),
        (lambda: _C.pinned("x"), TypeError),
        (lambda: _C.nbytes([]), TypeError),
        (lambda: _C.move(3, "cpu"), TypeError),
        (lambda: _C.move(torch.ones(1), "cuda"), ValueError),
        (lambda: _C.move(torch.ones(1, device="meta"), D1), ValueError),
        (lambda: _C.history(3), TypeError),
        (lambda: _C.object_id(3), TypeError),
        (lambda: _C.resume(3, 1), TypeError),
        (lambda: _C.set_copy_warning(-1), ValueError),
        (lambda: _C.set_copy_warning(2**63), ValueError),
        (lambda: _C.set_copy_warning(True), TypeError),
        (lambda: _C.set_copy_warning("16"), TypeError),
        (lambda: _C.estimate(-1), ValueError),
        (lambda: _C.estimate("1"), TypeError),
        (lambda: _C.admit(3, 1, False), TypeError),
        (lambda: _C.rooms(None), TypeError),
        (lambda: _C.settle(None), TypeError),
        (lambda: _C.reserve(_C.get_manager(), device_name(9), 1), ValueError),
        (lambda: _C.plan_layers([1], None, 3), TypeError),
        (lambda: _C.plan_layers([-1], None, [1]), ValueError),
        (lambda: _C.plan_stages([1], [1], [1], None, [3], [1]), TypeError),
        (lambda: _C.plan_stages([1], [1], [1], None, 3, [1], None), TypeError),
        (lambda: _C.plan_stages([1.5], [1], [1], None, [3], [1], None), TypeError),
        (lambda: _C.plan_stages([-1], [1], [1], None, [3], [1], None), ValueError),
        (lambda: _C.plan_stages([1], [1, 2], [1], None, [3], [1], None), ValueError),
        (lambda: _C.plan_stages([1, 2], [1, 2], [1, 2], [1, 2], [3], [1], None), ValueError),
        (lambda: _C.plan_stages([1], [1], [1], None, [3], [1, 2], None), ValueError),
        (lambda: _C.plan_stages([1], [1], [1], None, [3, 3], [1, 1], [-1.0]), ValueError),
        (lambda: _C.plan_spilled_stages([1], [1], [1], None, [], [], None), ValueError),
        (lambda: _C.bandwidth("cpu"), TypeError),
        (lambda: _C.bandwidth("cpu", "nowhere"), ValueError),
        (lambda: _C.cut_backward(3), TypeError),
        (lambda: _C.cut_backward(torch.ones(1)), TypeError),
        (lambda: _C.end_at_crossing(3, True), ValueError),
        (lambda: _C.leave_crossing(None), ValueError),
        (lambda: _C.plan_layers([1, 2], [1, 1], [3]), ValueError),
        (lambda: _C.capacity("cpu"), ValueError),
        (lambda: _C.set_capacity(D0, -1, True, False), ValueError),
        (lambda: _C.device_name("cuda"), ValueError),
        (lambda: _C.attach_sim(3, 1), ValueError),
        (lambda: _C.install(3), TypeError),
        (lambda: _C.install(int), RuntimeError),
        (lambda: _C.Reservation(), TypeError),
        (lambda: _C.Engine(), TypeError),
        (lambda: managed.explain(3), TypeError),
        (lambda: type("Mine", (_C.DeviceManager,), {}), TypeError),
    ],
)
def test_private_functions_refuse_nonsense(call, error):
    with pytest.raises(error):
        call()


def test_reservations_give_themselves_back():
    def reserved():
        return managed.stats()["devices"][D1]["reserved"]

    manager = _C.get_manager()
    held = _C.reserve(manager, D1, 1000)
    assert (held.device, held.bytes, reserved()) == (torch.device(D1), 1000, 1000)
    held.release()
    held.release()
    assert reserved() == 0
    with _C.reserve(manager, D1, 500):
        assert reserved() == 500
    assert reserved() == 0
    held = _C.reserve(manager, D1, 300)
    del held
    assert reserved() == 0
    assert _C.reserve(manager, D1, 2**40) is None
    assert _C.settle(manager) is False


def test_stats_reset():
    torch.ones(4).as_subclass(managed.ManagedTensor).cuda(1)
    before = managed.stats(reset=True)
    assert before["move"] >= 1
    assert before["move_bytes"] >= 16
    assert before["links"][f"cpu->{D1}"] >= 16
    after = managed.stats()
    assert after["move"] == after["move_bytes"] == 0
    assert after["links"] == {}
    with pytest.raises(TypeError):
        managed.stats(1, 2)


@pytest.mark.not_under_torture("it counts what leaves and comes back")
def test_stats_count_to_the_byte():
    managed.stats(reset=True)
    a = torch.ones(100).as_subclass(managed.ManagedTensor).cuda(1)
    b = a.cuda(2)
    b.cpu()
    counted = managed.stats()
    assert counted["links"][f"cpu->{D1}"] == 400
    assert counted["links"][f"{D1}->{D2}"] == 400
    assert counted["move"] == 2
    assert counted["move_bytes"] == 800


def test_explain_tells_who_where_and_why():
    x = torch.ones(100).as_subclass(managed.ManagedTensor)
    assert str(managed.explain(x)) == "nothing has been recorded"
    there = x.cuda(1)
    there.pin()
    there.unpin()
    history = managed.explain(there)
    assert [e.kind for e in history] == ["move", "pin", "unpin"]
    assert (history[0].source, history[0].target, history[0].bytes) == ("cpu", D1, 400)
    assert history[0].reason == "the program asked for it"
    lines = [line for line in str(history).splitlines() if "no longer held" not in line]
    assert len(lines) == 3
    assert f"move cpu -> {D1} 400 bytes" in lines[0]
    assert managed.explain(torch.ones(1)) == []


def test_explain_a_module_names_its_tensors():
    net = managed.ManagedModule.from_module(torch.nn.Linear(2, 2)).cuda(1)
    history = managed.explain(net)
    assert [(e.tensor, e.kind, e.target) for e in history] == [
        ("weight", "move", D1),
        ("bias", "move", D1),
    ]
    assert len(managed.explain()) >= 2
    assert [e.sequence for e in history] == sorted(e.sequence for e in history)


def test_what_is_on_a_device_cannot_be_pinned_and_what_to_do():
    """As a DataLoader with pin_memory=True asks for each batch."""
    x = torch.ones(8).as_subclass(ManagedTensor)
    assert not x.is_pinned()
    there = x.to(D0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(there), 4, pin_memory=True)
    for call in (there.pin_memory, lambda: list(loader)):
        with pytest.raises(RuntimeError, match="cannot pin") as caught:
            call()
        assert f"on {D0} already" in str(caught.value)
        assert "pin_memory=False" in str(caught.value)
    assert torch.equal(x.pin_memory(), x)
