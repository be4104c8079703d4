"""Every way to the bytes of a tensor that has left: it finds them, or a clean exception."""

import copy
import ctypes
import io
import pickle

import pytest
import torch
from support.devices import D0, D1, D2, device_module
from support.pressure import BYTES, N, make, moved, nothing_left, on, spill  # noqa: F401
from torch import nn
from torch.autograd import forward_ad as fwAD

import managed
from managed import _C, ManagedTensor

# ---- the ways out


def saved(x):
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


WAYS = {
    "tolist": lambda x: torch.tensor(x.tolist()),
    "items": lambda x: torch.stack([torch.tensor(x[i].item()) for i in range(5)]),
    "cpu": lambda x: x.cpu(),
    "peer": lambda x: x.to(D1),
    "numpy": lambda x: torch.from_numpy(x.cpu().numpy()),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "save": saved,
    "tensor": lambda x: x.clone().detach(),
    "as_tensor": torch.as_tensor,
    "storage": lambda x: torch.empty(0, device=x.device).set_(x.untyped_storage()),
    "storage, copy": lambda x: torch.frombuffer(
        bytearray(x.untyped_storage().cpu().tolist()), dtype=torch.float32
    ),
    "set_": lambda x: on(torch.empty(0)).set_(x),
    "data": lambda x: x.data,
    "lazy clone": lambda x: x._lazy_clone(),
    "strided": lambda x: x.as_strided((N,), (1,)),
    "dtype": lambda x: x.view(torch.int32).view(torch.float32),
    "pointer": lambda x: torch.frombuffer(
        bytearray(ctypes.string_at(x.data_ptr(), BYTES)), dtype=torch.float32
    ),
    "plain": lambda x: _C.unmark(x.detach()),
    "new": lambda x: x.new(x.tolist()),
    "vmap": lambda x: torch.vmap(lambda t: t * 1)(x.view(-1, 64)).flatten(),
    "jvp": lambda x: torch.func.jvp(lambda t: t * 1, (x,), (x,))[1],
}


# torch 2.13 says it of its own forward-mode rules.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_every_way_out_finds_the_bytes(way):
    here, x = make()
    spill(x)
    out = WAYS[way](x).cpu()
    assert torch.equal(out, here[: len(out)])
    assert torch.equal(x.cpu(), here)


def test_print_shows_the_values():
    here, x = make()
    spill(x)
    text = repr(x)
    assert text.startswith(repr(here)[: repr(here).index("...")])
    assert f"device='{D0}'" in text
    spill(x)
    assert f"{x[0]:.4f}" == f"{here[0]:.4f}"


_OF_SIMULATED = [
    pytest.param(*case, marks=pytest.mark.only_simulated("torch gives CUDA's bytes away so"))
    for case in (
        (torch.from_dlpack, ValueError, "Unknown device type sim"),
        (lambda x: x.share_memory_(), RuntimeError, "cannot be shared with another process"),
    )
]


@pytest.mark.parametrize(
    ("way", "error", "says"),
    [
        (lambda x: x.numpy(), TypeError, f"can't convert {D0} device type tensor to numpy"),
        *_OF_SIMULATED,
        (lambda x: x + torch.ones(3), RuntimeError, "must match the size"),
        (lambda x: x.view(3, 5), RuntimeError, "is invalid for input of size"),
    ],
    ids=["numpy", "dlpack", "share_memory_", "sizes", "view"],
)
def test_what_is_refused_leaves_the_tensor_whole(way, error, says):
    here, x = make()
    spill(x)
    with pytest.raises(error, match=says):
        way(x)
    assert torch.equal(x.cpu(), here)


@pytest.mark.parametrize("way", [lambda x: x.numpy()], ids=["numpy"])
def test_what_is_refused_pins_nothing(way):
    _, x = make()
    with pytest.raises(TypeError):
        way(x)
    spill(x)


@pytest.mark.parametrize("way", [lambda x: x.new_tensor([1.0]), lambda x: x.new(3)])
def test_what_makes_another_tensor_pins_nothing(way):
    _, x = make()
    way(x)
    spill(x)


# ---- what no operator sees


def test_a_plain_alias_of_bytes_that_left_raises():
    """What autograd saved before its result was managed is the one plain alias there is."""
    here, x = make(requires_grad=True)
    y = x.exp()
    alias = y.grad_fn._saved_result
    assert not isinstance(alias, ManagedTensor)
    spill(y)
    for read in (lambda: alias + 1, lambda: alias.cpu(), lambda: alias[0].item()):
        with pytest.raises(RuntimeError, match=r"moved to make room|has no memory"):
            read()
    y.sum().backward()  # autograd itself finds it
    here.exp().sum().backward()
    assert torch.equal(x.grad.cpu(), here.grad)
    y.sum()
    assert torch.equal(alias.detach().cpu(), here.detach().exp())


def test_the_exception_says_what_to_do():
    _, x = make(requires_grad=True)
    y = x.exp()
    alias = y.grad_fn._saved_result
    spill(y)
    with pytest.raises(RuntimeError, match=r"Use the tensor in any operator first, or pin\(\)"):
        alias + 1


def test_a_tensor_that_becomes_plain_comes_home_for_good():
    here, x = make()
    spill(x)
    _C.unmark(x)
    assert not isinstance(x, ManagedTensor)
    _C.spill_all()
    assert torch.equal(x.cpu(), here)
    assert torch.equal((x + 1).cpu(), here + 1)


def test_a_storage_stays_while_its_python_object_is_held():
    here, x = make()
    storage = x.untyped_storage()
    _C.spill_all()
    assert not _C.is_spilled(x)
    storage.fill_(0)
    del storage
    spill(x)
    assert x.sum().item() == 0 != here.sum()


@pytest.mark.not_under_torture("it counts what leaves")
def test_what_was_ever_lent_leaves_with_a_copy():
    """Nobody says when who holds the storage writes, so having come home is as good as written."""
    here, x = make()
    x.untyped_storage()
    spill(x)
    x + 0
    with moved() as counts:
        spill(x)
    assert counts["drop"] == 0 < counts["spill"]
    assert torch.equal(x.cpu(), here)


# ---- storages that are exchanged or resized


def test_set_to_nothing_gives_everything_back():
    _, x = make()
    spill(x)
    before = _C.host_memory()["used"]
    x.set_()
    assert x.shape == (0,)
    assert _C.host_memory()["used"] == before - BYTES


@pytest.mark.parametrize("elements", [100, N, 3 * N])
def test_resize(elements):
    here, x = make()
    spill(x)
    x.resize_(elements)
    kept = min(elements, N)
    spill(x) if elements > N else _C.spill_all()
    assert torch.equal(x[:kept].cpu(), here[:kept])
    assert x.untyped_storage().nbytes() == 4 * max(elements, N)


@pytest.mark.only_simulated("a block that CUDA's storage gets when it is resized may not leave")
@pytest.mark.parametrize("elements", [N + 8, 4 * N])
def test_resize_the_storage(elements):
    here, x = make()
    spill(x)
    x.untyped_storage().resize_(4 * elements)
    spill(x)
    assert torch.equal(x.cpu(), here)
    x.untyped_storage().resize_(4 * N)
    spill(x)
    assert torch.equal(x.cpu(), here)


@pytest.mark.only_simulated("a block that CUDA's storage gets when it is resized may not leave")
def test_a_storage_that_was_emptied_and_filled_again():
    """As FSDP does with what it gathers."""
    here, x = make()
    spill(x)
    before = device_module.memory_allocated(0)
    x.untyped_storage().resize_(0)
    assert device_module.memory_allocated(0) == before
    _C.spill_all()
    x.untyped_storage().resize_(BYTES)
    x.copy_(here)
    spill(x)
    assert torch.equal(x.cpu(), here)


def test_data_is_exchanged():
    (_, x), (other, y) = make(), make()
    spill(x, y)
    x.data = y
    assert torch.equal(x.cpu(), other)
    spill(y)
    x.add_(1)
    assert torch.equal(y.cpu(), other + 1)


def test_tensors_are_swapped():
    (here, x), (other, y) = make(), make()
    spill(x, y)
    torch.utils.swap_tensors(x, y)
    spill(x, y)
    assert torch.equal(x.cpu(), other)
    assert torch.equal(y.cpu(), here)


def test_out_grows():
    _, x = make()
    out = on(torch.empty(N // 2))
    spill(x, out)
    torch.cat([x, x], out=out.resize_(0))
    spill(x, out)
    assert torch.equal(out.cpu(), torch.cat([x.cpu(), x.cpu()]))


def test_record_stream():
    here, x = make()
    spill(x)
    side = device_module.Stream(0)
    with device_module.stream(side):
        y = x * 2
    x.record_stream(side)
    y.record_stream(device_module.current_stream(0))
    spill(x, y)
    assert torch.equal((y - x).cpu(), here)


# ---- other kinds


# torch says it once in a process.
@pytest.mark.not_under_torture("it counts what leaves and comes back")
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse(layout):
    here = torch.randn(200, 200).relu().to_sparse(layout=layout)
    x = here.as_subclass(ManagedTensor).to(D0)
    v = torch.randn(200, 3)
    for _ in range(2):
        spill(x)
        assert torch.equal((x @ on(v)).cpu(), here @ v)
        spill(x)
        assert torch.equal((x * 2).to_dense().cpu(), (here * 2).to_dense())
    with moved() as m:
        spill(x)
    assert (m["spill"], m["drop"]) == (0, 2)  # values and indices


def test_sparse_gradients():
    here = nn.Embedding(64, 128, sparse=True)
    there = copy.deepcopy(here)
    there.weight = nn.Parameter(on(there.weight.detach()))
    words = torch.randint(0, 64, (80,))
    for net, leave in ((here, lambda: None), (there, _C.spill_all)):
        optimizer = torch.optim.SparseAdam(net.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            net(words.to(net.weight.device)).square().sum().backward()
            leave()
            optimizer.step()
            leave()
    assert torch.equal(there.weight.cpu(), here.weight)


def test_lazy_conjugates_and_negatives():
    here, z = make(dtype=torch.complex64)
    conjugate = z.conj()
    negative = conjugate.imag
    assert conjugate.is_conj()
    assert negative.is_neg()
    spill(z, conjugate, negative)
    assert torch.equal((negative + 0).cpu(), here.conj().imag + 0)
    spill(conjugate)
    assert torch.equal((conjugate * z).cpu(), here.conj() * here)
    spill(z)
    assert torch.equal(torch.view_as_real(z).cpu(), torch.view_as_real(here))


def test_inference_tensors():
    here, x = make()
    with torch.inference_mode():
        y = x * 2
        spill(y)
        assert torch.equal(y.cpu(), here * 2)
        spill(y)
        y.add_(1)
        spill(y)
    assert y.is_inference()
    assert torch.equal(y.cpu(), here * 2 + 1)


# ---- to another device


def test_an_explicit_move_of_what_left():
    here, x = make(requires_grad=True)
    x.sum().backward()
    spill(x, x.grad)
    assert _C.move(x, D2)
    assert x.device == x.grad.device == torch.device(D2)
    assert torch.equal(x.detach().cpu(), here.detach())
    spill(x)
    x.pin()
    with pytest.raises(RuntimeError, match="pinned"):
        _C.move(x, D1)
    x.unpin()
    spill(x)
    assert torch.equal(x.detach().cpu(), here.detach())


def test_a_leaf_that_settles_elsewhere_while_it_is_away():
    here, x = make(requires_grad=True)
    z = on(torch.ones(8 * N), D1)
    for _ in range(8):
        spill(x)
        (z * x.repeat(8)).sum().backward()
        assert x.grad.device == x.device
    assert x.grad.tolist() == [64.0] * N
    assert torch.equal(x.detach().cpu(), here.detach())


def test_copies_on_other_devices_follow_writes():
    here, x = make()
    z = on(torch.zeros(N), D1)
    for _ in range(3):
        spill(x, z)
        assert torch.equal((z + x).cpu(), here)
        spill(x)
        x.add_(1)
        here.add_(1)


# ---- what torch reads where it shuts out the hook, or before the hook looks


LISTS = {
    "tensor": lambda x: torch.tensor([x[1], x[5]]),
    "nested": lambda x: torch.tensor([[x[1], x[5]], (x[2], 3.0)]),
    "elsewhere": lambda x: torch.tensor([x[1], x[5]], device=D1).cpu(),
    "double": lambda x: torch.tensor(data=[x[1], x[5]], dtype=torch.float64),
    "as_tensor": lambda x: torch.as_tensor([x[1], x[5]]),
    "asarray": lambda x: torch.asarray([x[1], x[5]]),
    "new_tensor": lambda x: x.new_tensor([x[1], x[5]]).cpu(),
    "new_tensor, named": lambda x: x.new_tensor(data=[x[1], x[5]]).cpu(),
    "new": lambda x: x.new([x[1], x[5]]).cpu(),
    "sparse": lambda x: torch.sparse_coo_tensor(
        [[0, 1]], [x[1], x[5]], check_invariants=True
    ).to_dense(),
}


@pytest.mark.parametrize("read", LISTS.values(), ids=LISTS)
def test_lists_of_numbers_that_left(read):
    here = torch.randn(64)
    expected = read(here)
    with managed.debug.torture(seed=0):
        assert torch.equal(read(on(here)), expected)
        other = on(here, D1)
        assert torch.equal(torch.tensor([on(here)[1], other[5]]), expected.flatten()[:2].float())


def test_lists_hold_what_they_read_only_meanwhile():
    here, x = make()
    values = [x[i] for i in range(10)]
    spill(x)
    assert torch.tensor(values).tolist() == here[:10].tolist()
    assert _C.residency(D0)["in_use"] == 0
    spill(x)
    with pytest.raises(ValueError, match="only one element tensors"):
        torch.tensor([x[:2], x[2:4]])
    spill(x)


def test_functions_that_read_lists_are_torchs_own():
    assert type(torch.tensor) is type(torch.zeros)
    assert torch.tensor([1, 2.5], dtype=torch.float64).tolist() == [1, 2.5]
    deep = []
    for _ in range(10**5):
        deep = [deep]
    with pytest.raises(ValueError, match="too many dimensions"):
        torch.tensor(deep)


LIKE = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "empty_like": lambda t: torch.empty_like(t).fill_(0),
    "full_like": lambda t: torch.full_like(t, 2.0),
    "rand_like": lambda t: torch.rand_like(t) * 0,
    "randn_like": lambda t: torch.randn_like(t) * 0,
    "new_zeros": lambda t: t.new_zeros(3, 2),
    "new_ones": lambda t: t.new_ones(3),
    "new_full": lambda t: t.new_full((3,), 2.0),
    "new_empty": lambda t: t.new_empty(3).fill_(1),
}
LAZY = {
    "conjugate": lambda z: z.conj(),
    "negative": lambda z: z.conj().imag,
    "view": lambda z: z.conj()[2:9],
}


@pytest.mark.parametrize("lazy", LAZY.values(), ids=LAZY)
@pytest.mark.parametrize("make_like", LIKE.values(), ids=LIKE)
def test_what_is_made_like_lazy_views_that_left(make_like, lazy):
    here = torch.randn(64, dtype=torch.complex64)
    expected = make_like(lazy(here))
    with managed.debug.torture(seed=0):
        x = on(here)
        found = make_like(lazy(x)).cpu()
        assert torch.equal(found, expected)
        assert found.dtype == expected.dtype
        assert torch.equal(x.cpu(), here)


@pytest.mark.not_under_torture("what is made like others must bring nothing home")
def test_what_is_made_like_others_brings_none_home():
    _, x = make()
    spill(x)
    torch.zeros_like(x)
    x.new_zeros(3)
    assert _C.is_spilled(x)


TANGENTS = {
    "slice": lambda d: d[2:9],
    "view": lambda d: d.view(8, 8).t()[1],
    "select": lambda d: d.select(0, 3),
    "split": lambda d: d.split(16)[1],
    "real": lambda d: torch.view_as_real(torch.view_as_complex(d.view(-1, 2))),
    "result": lambda d: d * 2,
    "in place": lambda d: (d * 1)[1:5].mul_(2),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("view", TANGENTS.values(), ids=TANGENTS)
def test_tangents_of_views(view):
    values, tangents = torch.randn(64), torch.randn(64)

    def found(values, tangents):
        with fwAD.dual_level():
            v = view(fwAD.make_dual(values, tangents * 2))
            tangent = fwAD.unpack_dual(v).tangent
            squared = fwAD.unpack_dual((v * v).sum()).tangent
            return [(tangent + 1).cpu(), tangent.cpu(), squared.cpu()]

    expected = found(values, tangents)
    with managed.debug.torture(seed=0):
        for a, b in zip(expected, found(on(values), on(tangents)), strict=True):
            assert torch.equal(a, b)
