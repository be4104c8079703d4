"""Copies between devices that the program asks for are counted and explained, to the byte, once."""

import numpy as np
import pytest
import torch
from support.apart import rand
from support.devices import D0, D1, D2, D3, DEVICE_TYPE
from torch import nn
from torch.utils.checkpoint import checkpoint

import managed
from managed import _C, ManagedModule, ManagedTensor, device_manager

ASKED = "the program asked for it"
N = 100


class Counted:
    """What `with` counts: copies, their bytes, moves, bytes by link; and the copies' events."""

    def __enter__(self):
        self.begin = managed.stats()["events"]
        managed.stats(reset=True)
        return self

    def __exit__(self, *exception):
        stats = managed.stats()
        self.copies, self.bytes, self.links = stats["copy"], stats["copy_bytes"], stats["links"]
        self.moves = stats["move"]
        self.events = [e for e in managed.explain().since(self.begin) if e.kind == "copy"]
        assert len(self.events) == self.copies
        assert sum(e.bytes for e in self.events) == self.bytes


def assert_asked(counted, source, target, nbytes, copies=1):
    assert counted.links == {f"{source}->{target}": nbytes * copies}
    assert (counted.copies, counted.bytes, counted.moves) == (copies, nbytes * copies, 0)
    assert {e.reason for e in counted.events} == {ASKED}
    assert {(e.source, e.target) for e in counted.events} == {(source, target)}


HOME = {
    "cpu()": lambda b: b.cpu(),
    "to('cpu')": lambda b: b.to("cpu"),
    "to(device)": lambda b: b.to(torch.device("cpu")),
    "to(other)": lambda b: b.to(torch.zeros(1)),
    "to(device, dtype)": lambda b: b.to("cpu", torch.float64),
    "tolist()": lambda b: b.tolist(),
    "numpy(force=True)": lambda b: b.numpy(force=True),
    "detach().cpu().numpy()": lambda b: b.detach().cpu().numpy(),
    "np.asarray(cpu)": lambda b: np.asarray(b.cpu()),
    "a.copy_(b)": lambda b: torch.empty(N).copy_(b),
    "a[:] = b": lambda b: torch.empty(N).__setitem__(slice(None), b),
    "type_as": lambda b: b.type_as(torch.zeros(1)),
    "under autocast": lambda b: autocast_to_cpu(b),
    "in inference mode": lambda b: in_inference_mode(b),
    "with a gradient": lambda b: b.clone().requires_grad_().cpu(),
}


def autocast_to_cpu(b):
    with torch.autocast(DEVICE_TYPE, dtype=torch.bfloat16):
        return b.cpu()


def in_inference_mode(b):
    with torch.inference_mode():
        return b.cpu()


@pytest.mark.parametrize("how", HOME)
def test_what_goes_to_the_host(how):
    b = rand(D0, N)
    with Counted() as counted:
        HOME[how](b)
    assert_asked(counted, D0, "cpu", b.nbytes)


NUMBERS = {
    "item()": lambda b: b[0].item(),
    "float()": lambda b: float(b[0]),
    "bool()": lambda b: bool(b[0] > 0),
    "int()": lambda b: int(b[0]),
}


@pytest.mark.parametrize("how", NUMBERS)
def test_a_number_is_a_copy_of_its_bytes(how):
    b = rand(D2, N)
    with Counted() as counted:
        NUMBERS[how](b)
    assert_asked(counted, D2, "cpu", 1 if how == "bool()" else 4)


def test_copies_between_accelerators():
    a, b = rand(D0, N), rand(D1, N)
    with Counted() as counted:
        a.copy_(b)
        a[:10] = b[:10]
    assert counted.links == {f"{D1}->{D0}": b.nbytes + 40}
    assert [(e.bytes, e.reason, e.operator) for e in counted.events] == [
        (b.nbytes, ASKED, "aten::copy_"),
        (40, ASKED, "aten::copy_"),
    ]
    assert torch.equal(a[:10].cpu(), b[:10].cpu())


@pytest.mark.parametrize(("a", "b"), [("cpu", D1), (D1, "cpu")])
def test_one_managed_side_is_enough(a, b):
    for wrapped in (0, 1):
        pair = [torch.rand(N, device=a), torch.rand(N, device=b)]
        pair[wrapped] = pair[wrapped].as_subclass(ManagedTensor)
        with Counted() as counted:
            pair[0].copy_(pair[1])
        assert_asked(counted, b, a, 4 * N)


def test_the_tensor_tells_of_it():
    b = rand(D0, N)
    result = b * 2  # no name of its own yet
    with Counted():
        result.cpu()
        result[3].item()
    history = managed.explain(result)
    assert [(e.kind, e.bytes, e.reason) for e in history] == [
        ("copy", result.nbytes, ASKED),
        ("copy", 4, ASKED),
    ]
    assert history[0].site.endswith("in test_the_tensor_tells_of_it")
    assert (history[0].source, history[0].target) == (D0, "cpu")
    assert history.copies == 2


def test_no_warning_of_what_the_program_asks_for(recwarn):
    b = rand(D0, N)
    for _ in range(3 * managed.COPY_WARNING):
        b.cpu()
    _C.begin_step()
    assert not [w for w in recwarn if issubclass(w.category, managed.errors.CopyWarning)]


SILENT = {
    "on one device": lambda a, b: a.copy_(a.clone()),
    "dtype": lambda a, b: a.double().to(torch.float16),
    "on the host": lambda a, b: (b.cpu(), b[0].item(), b.tolist(), b.numpy(), b.copy_(b.clone())),
    "to itself": lambda a, b: (a.to(D0), a.to(a)),
    "plain": lambda a, b: torch.rand(N, device=D0).cpu().tolist(),
    "meta": lambda a, b: a.to("meta"),
    "a fill": lambda a, b: a.fill_(3.0),
}


@pytest.mark.parametrize("how", SILENT)
def test_what_crosses_no_border_counts_nothing(how):
    a, b = rand(D0, N), torch.rand(N).as_subclass(ManagedTensor)
    with Counted() as counted:
        SILENT[how](a, b)
    assert (counted.copies, counted.moves, counted.links) == (0, 0, {})


def test_a_failed_copy_counts_nothing():
    a, b = rand(D0, N), rand(D1, N + 1)
    with Counted() as counted, pytest.raises(RuntimeError):
        a.copy_(b)
    assert counted.copies == 0


# ---- nothing is counted twice


def test_moves_are_moves():
    x = torch.rand(N).as_subclass(ManagedTensor)
    net = ManagedModule.from_module(nn.Linear(4, 4))
    with Counted() as counted:
        x.cuda(1)
        x.to(D2, torch.float64)
        x.cuda()
        device_manager.send([x], device=D3)
        net.cuda(1)
    assert (counted.copies, counted.moves) == (0, 6)


def test_alignment_and_write_backs_tell_of_their_own():
    a, b, c = rand(D0, N), rand(D1, N), rand(D2, N).pin()
    with Counted() as counted:
        a + b
        torch.add(b, b, out=(out := rand(D3, N)))
        a.add_(c)
        a.mul_(b.expand(3, N)[0])
    assert ASKED not in {e.reason for e in counted.events}
    assert managed.stats()["links"] == counted.links
    assert out.device == torch.device(D3)


def test_gradients_come_home_once():
    w, x = rand(D0, 4, 4).requires_grad_(), rand(D1, 64, 4).pin()
    with Counted() as counted:
        (x @ w).sum().backward()
    assert [(e.operator, e.bytes) for e in counted.events] == [
        ("aten::matmul", 64),
        ("gradient", 64),
    ]


def test_the_gradient_of_a_copy_is_a_copy():
    w = rand(D0, N).requires_grad_()
    with Counted() as counted:
        w.cpu().sum().backward()
    assert counted.links == {f"{D0}->cpu": 4 * N, f"cpu->{D0}": 4 * N}
    assert {e.reason for e in counted.events} == {ASKED}


def test_checkpoints_copy_again():
    w = rand(D0, N).requires_grad_()
    with Counted() as counted:
        checkpoint(lambda w: (w.cpu() ** 2).sum(), w, use_reentrant=False).backward()
    assert counted.links == {f"{D0}->cpu": 8 * N, f"cpu->{D0}": 4 * N}


def test_optimizers_ask_for_nothing():
    net = ManagedModule.from_module(nn.Linear(8, 8)).cuda(1)
    optimizer = torch.optim.AdamW(net.parameters())
    x = rand(D1, 4, 8)
    for i in range(3):
        with Counted() as counted:
            net(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert counted.copies == 0, (i, counted.events)
