"""One test for each bug that was fixed in the hook and in alignment."""

import threading

import pytest
import torch
from support.apart import copies
from support.devices import D0, D1
from torch import nn

from managed import ManagedModule, ManagedTensor


def at(device, data):
    return torch.as_tensor(data).to(device).as_subclass(ManagedTensor)


def test_an_operand_that_is_read_and_written_is_written_back():
    """The copy made for reading was found again for writing, and the result stayed in it."""
    a, q = at(D0, [[4.0, 1.0], [2.0, 3.0]]), at(D1, torch.empty(2, 2))
    expected = torch.linalg.qr(a.cpu())
    torch.linalg.qr(a, out=(q, a))
    assert torch.equal(q.cpu(), expected.Q)
    assert torch.equal(a.cpu(), expected.R)
    p, generator = at(D0, torch.full((64,), 0.5)), torch.Generator(D1).manual_seed(0)
    torch.bernoulli(p, generator=generator, out=p)
    assert set(p.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("short", [D0, D1])
def test_lists_of_different_lengths_are_refused_over_devices_too(short):
    """Each group of rows took the short list whole, and the lengths agreed by chance."""
    rows = [at(D0, [1.0]), at(D1, [1.0])]
    with pytest.raises(RuntimeError, match="same number of tensors"):
        torch._foreach_add_(rows, [at(short, [1.0])])
    assert [r.item() for r in rows] == [1.0, 1.0]


def test_an_alias_from_before_a_move_has_no_part_in_later_pins():
    """A moved tensor shared its state with aliases that had stayed behind."""
    net = ManagedModule.from_module(nn.Linear(2, 2)).cuda(0)
    old = net.weight.detach()
    net.cuda(1)
    net.weight.pin()
    assert net.weight.pinned
    assert not old.pinned
    assert (old + net.weight).device == torch.device(D1)


def test_a_view_does_not_move_in_place():
    """Its base stayed on the old device, and autograd believed the base."""
    from managed import _C

    base = torch.zeros(4)
    view = base.as_subclass(ManagedTensor)
    with pytest.raises(RuntimeError, match="a view does not move in place"):
        _C.move(view, D1)
    assert view.device.type == "cpu"


def test_copies_for_alignment_are_made_without_grad_mode():
    """InferenceMode(False) turned grad mode on behind the guard that had turned it off."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class GradModes(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(torch.is_grad_enabled())
            return function(*args, **(kwargs or {}))

    a, b = at(D0, [1.0]), at(D1, [2.0])
    with torch.no_grad(), GradModes() as modes:
        a + b
    assert modes.seen
    assert not any(modes.seen)


def test_evaluation_does_not_touch_running_statistics():
    """Statistics were written back although the kernel had only read them."""
    mean, variance = at(D0, torch.zeros(3)), at(D0, torch.ones(3))
    version = mean._version
    nn.functional.batch_norm(at(D1, torch.rand(5, 3)), mean, variance, training=False)
    assert mean._version == version


def test_the_gradient_follows_a_module_moved_before_its_backward():
    """The gradient landed on the device that the parameter had left."""
    net = ManagedModule.from_module(nn.Linear(4, 4)).cuda(0)
    y = net(torch.rand(2, 4)).sum()
    net.cuda(1)
    y.backward()
    assert net.weight.grad.device == net.weight.device == torch.device(D1)


def test_data_can_be_assigned_on_simulated_devices():
    """The key made two sets differ that torch compares whole on PrivateUse1."""
    x = at(D0, [1.0, 2.0])
    x.data = torch.tensor([3.0, 4.0], device=D0)
    assert x.tolist() == [3.0, 4.0]


def test_operands_of_a_compiled_function_whose_sizes_are_symbols(run_python):
    """Their bytes were asked for, and a symbol has none."""
    run_python(
        """
        import torch, managed

        with managed.on("2x64MiB"):
            f = torch.compile(lambda x, y: x + 2 * y, backend="eager", dynamic=True)
            for n in (3, 5, 8):
                x, y = torch.randn(n), torch.randn(n)
                assert torch.equal(f(x.to("cuda:0"), y.to("cuda:1")).cpu(), x + 2 * y)
        """
    )


def lent(device, *sizes):
    """A managed tensor over the bytes of a plain one that is gone."""
    return torch.randn(sizes).to(device).as_subclass(ManagedTensor)


def test_a_plain_tensor_that_is_gone_writes_no_more():
    """Its bytes counted as written unseen for as long as anything held them, a view of ours too."""
    x, w = lent(D0, 64, 64), lent(D1, 64)
    copies(lambda: x + w)
    view = w.view(8, 8)
    w.add_(1)
    assert [copies(lambda: x + w)[1] for _ in range(3)] == [1, 0, 0]
    view.add_(1)
    result, copied = copies(lambda: x + w)
    assert copied == 1
    assert torch.equal(result.cpu(), x.cpu() + w.cpu())


def test_a_storage_that_is_asked_for_again_may_be_written():
    x, w = lent(D0, 8, 8), lent(D1, 8)
    copies(lambda: x + w)
    storage = w.untyped_storage()
    for value in (1.0, 2.0, 3.0):
        torch.empty(0, device=D1).set_(storage).fill_(value)
        assert torch.equal((x + w).cpu(), x.cpu() + value)


def test_threads_that_need_one_tensor_copy_it_once_each():
    """The copy of one thread held the bytes for a moment, so that no other thread kept its own."""
    x, w = lent(D0, 64, 1000), lent(D1, 64, 1000)
    together = threading.Barrier(4)

    def work():
        together.wait()
        for _ in range(20):
            x + w

    def all_of_them():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    assert copies(all_of_them)[1] <= 4
