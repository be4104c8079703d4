"""Random programs on plain tensors and on managed ones: the same bits, or the same error.

    python tests/fuzz.py [SECONDS] [SEED]

A program is a list of instructions, each a name and a seed, so that any part of it is a program,
too. A world runs it: the plain one on the CPU; the managed one with tensors on several devices and
with plain tensors among them, while it moves, pins, hints, sets budgets and makes storages leave.
Values are small integers in float64: sums are exact in any order, so all must be bitwise equal.

A program that fails is shortened and printed; the exit status is 1. A seed repeats its programs;
what threads do at the same time does not repeat.

Plain torch refuses some programs because a tensor that the backward pass needs has been written, or
has no version counter. Managed may give the gradient of the value that was used instead, if its
copy has kept that.
"""

import contextlib
import copy
import gc
import io
import itertools
import random
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import Counter
from dataclasses import dataclass, field

import torch
from support.devices import D0, D1, D2, ON_CUDA, device_module
from support.garbage import collect_and_freeze, empty_queue
from torch.nn import functional as F

import managed
from managed import _C, ManagedTensor

SIDE = 64  # tensors are square matrices of so many rows: 32 KiB, enough to have a handle
SLOTS = 8
LENGTH = 70  # instructions of a program
DEVICES = (D0, D1, D2)
PLACES = ("cpu", *DEVICES)
# In the texts of what plain torch refuses.
REFUSALS = ("modified by an inplace operation", "Inference tensors cannot be saved for backward")
# In those of what it refuses for managed tensors alone: a copy has an edge where a view has none,
# and a write through an array of NumPy's, which a device has not, is one that is counted.
STRICTER = (REFUSALS[1], "A view was created in inference mode and its base")


class Skipped(Exception):
    """An instruction has nothing to work on. Both worlds skip it."""


class World:
    """The tensors of a program by number, and which of them are leaves with a gradient."""

    def __init__(self, is_managed, tensors=(), leaves=()):
        self.is_managed = is_managed
        self.tensors = dict(tensors)
        self.leaves = set(leaves)
        self.made = []  # weak references
        self.said = ""

    def any(self, r):
        return self.get(r.randrange(SLOTS))

    def get(self, slot):
        if slot not in self.tensors:
            raise Skipped
        return self.tensors[slot]

    def put(self, r, tensor, leaf=False):
        """Puts the tensor into any slot."""
        slot = r.randrange(SLOTS)
        self.tensors[slot] = tensor
        self.made.append(weakref.ref(tensor))
        (self.leaves.add if leaf else self.leaves.discard)(slot)
        self.said += f" -> {slot}"

    def place(self, tensor, place):
        """The tensor as a managed one that is there; a plain one for "plain"."""
        if not self.is_managed or place == "plain":
            return tensor
        return tensor.as_subclass(ManagedTensor).to(place, copy=True)

    def like(self, tensor, other):
        """A tensor of the other's values, plain or managed and on a device as the first is."""
        values = other.detach().clone()
        if not self.is_managed:
            return values
        if isinstance(tensor, ManagedTensor):
            return values.as_subclass(ManagedTensor).to(tensor.device)
        return torch.empty_strided(values.shape, values.stride(), dtype=values.dtype).copy_(values)

    def carry_out(self, name, seed):
        for x in self.tensors.values():
            # Without that torch takes a view whose base has been written for a leaf. It refuses it
            # for some views that were made in inference mode.
            has_graph(x)
        self.said += f" {name}"
        INSTRUCTIONS[name][1](self, random.Random(seed))

    def choose(self, r, ways):
        """Runs one of the functions, by their names."""
        name = r.choice(sorted(ways))
        self.said += f" {name}"
        return ways[name]()


def has_graph(x):
    """Whether a graph has made the tensor.

    For a view from inference mode torch refuses to tell that once its base has been written. Such a
    view has no graph. Managed counts more writes, those of `apply_` too, so it refuses more often.
    """
    try:
        return x.grad_fn is not None
    except RuntimeError:
        return False


def small(x):
    return x - 7 * torch.floor(x / 7)


def values(r, *shape):
    made = torch.Generator().manual_seed(r.randrange(2**31))
    return torch.randint(-3, 4, shape or (SIDE, SIDE), generator=made).double()


def places(r, w, count=SIDE):
    """Indices; managed ones now and then."""
    made = torch.Generator().manual_seed(r.randrange(2**31))
    indices = torch.randint(0, SIDE, (count,), generator=made)
    return w.place(indices, r.choice(["plain", "plain", *PLACES]))


def part(r):
    """An index that gives a view."""
    return r.choice(
        [
            (slice(8, 40), slice(None)),
            (slice(None), slice(3, 35)),
            (slice(None, None, 2), slice(None)),
            (slice(10, 42), slice(5, 44)),
        ]
    )


# ---- instructions: functions of a world and a random generator, the same numbers in both worlds

INSTRUCTIONS = {}  # name: (weight, function)


def instruction(weight):
    def note(function):
        INSTRUCTIONS[function.__name__] = weight, function
        return function

    return note


@instruction(6)
def new(w, r):
    """A tensor, or two that overlap in one storage."""
    place, made = r.choice(["plain", "cpu", *PLACES]), values(r, 2 * SIDE, SIDE)
    base = w.place(made, place)
    for begin in r.choice([(0,), (0, SIDE // 2), (SIDE // 4, SIDE)]):
        w.put(r, base[begin : begin + SIDE])


@instruction(5)
def leaf(w, r):
    place = r.choice(["plain", *PLACES])
    made = w.place(values(r), place).detach()
    w.put(r, made.requires_grad_(), leaf=True)


@instruction(2)
def leaf_of_what_was_computed(w, r):
    w.put(r, w.any(r).detach().clone().requires_grad_(), leaf=True)


@instruction(2)
def in_inference_mode(w, r):
    """A tensor that has no version counter."""
    with torch.inference_mode():
        w.put(r, w.place(values(r), r.choice(["plain", "plain", *PLACES])))


@instruction(2)
def wrapped(w, r):
    """A managed tensor of the bytes of another."""
    x = w.any(r).detach()
    w.put(r, x.as_subclass(ManagedTensor) if w.is_managed else x.view_as(x))


@instruction(18)
def binary(w, r):
    x, y = w.any(r), w.any(r)
    made = w.choose(
        r,
        {
            "x + y": lambda: x + y,
            "x * y": lambda: x * y,
            "x - y.t()": lambda: x - y.t(),
            "maximum": lambda: torch.maximum(x, y),
            "x @ y": lambda: x @ y,
            "where": lambda: torch.where(x > y, x, -y),
            "addmm": lambda: torch.addmm(x, y, y.t()),
            "row and column": lambda: x * y[0] + y[:, :1],
            "linear": lambda: F.linear(x, y, y[0]),
        },
    )
    w.put(r, small(made))


@instruction(10)
def unary(w, r):
    x = w.any(r)
    made = w.choose(
        r,
        {
            "relu": x.relu,
            "-x": lambda: -x,
            "flip": lambda: x.flip(0),
            "roll": lambda: x.roll(3, 1),
            "cumsum": lambda: x.cumsum(0),
            "clamp": lambda: x.clamp(-1, 2),
            "contiguous": lambda: x.t().contiguous(),
            "clone": x.clone,
            "sort": lambda: x.sort(0).values,
            "pairs": lambda: x.reshape(SIDE // 2, 2, SIDE).sum(1).repeat(2, 1),
        },
    )
    w.put(r, small(made))


@instruction(5)
def view(w, r):
    x = w.any(r)
    w.put(
        r,
        w.choose(
            r,
            {
                "t": x.t,
                "[:]": lambda: x[:],
                "view": lambda: x.view_as(x),
                "detach": x.detach,
                "unflatten": lambda: x.unflatten(0, (2, -1)).flatten(0, 1),
            },
        ),
    )


@instruction(8)
def index(w, r):
    x, y, chosen = w.any(r), w.any(r), places(r, w)
    grid = (SIDE, SIDE)
    made = w.choose(
        r,
        {
            "x[i]": lambda: x[chosen],
            "index_select": lambda: x.index_select(1, chosen),
            "gather": lambda: x.gather(0, chosen[None].expand(grid)),
            "index_add": lambda: x.index_add(0, chosen, y),
            "masked_fill": lambda: x.masked_fill(y > 0, 2.0),
            "index_put": lambda: x.index_put((chosen,), y, accumulate=True),
            "scatter_add": lambda: x.scatter_add(1, chosen[:, None].expand(grid), y),
            "x[i, j]": lambda: x[chosen, chosen.flip(0)][:, None] + y,
        },
    )
    w.put(r, small(made))


@instruction(3)
def joined(w, r):
    x, y, z = w.any(r), w.any(r), values(r)
    made = w.choose(
        r,
        {
            "stack": lambda: torch.stack([x, y, z]).sum(0),
            "cat": lambda: torch.cat([x, y, z], 1)[:, ::3],
        },
    )
    w.put(r, small(made))


@instruction(3)
def lists(w, r):
    xs = [x for _, x in sorted(w.tensors.items()) if not x.requires_grad][:4]
    if len(xs) < 2:
        raise Skipped
    made = torch._foreach_add(torch._foreach_mul(xs, 2), xs)
    torch._foreach_add_(made, 1.0)
    w.put(r, small(sum(made)))


@instruction(12)
def write(w, r):
    x, y, chosen, where, factor = w.any(r), w.any(r), places(r, w), part(r), r.randrange(3)
    w.choose(
        r,
        {
            "add_": lambda: x.add_(y),
            "mul_": lambda: x.mul_(factor),
            "x[:] = ": lambda: x.__setitem__(where, y[where]),
            "x[:] +=": lambda: x[where].add_(y[where]),
            "copy_": lambda: x.copy_(y),
            "zero_": lambda: x[where].zero_(),
            "index_add_": lambda: x.index_add_(0, chosen, y),
            "masked_fill_": lambda: x.masked_fill_(y > 1, 1.0),
            "t().add_": lambda: x.t().add_(y),
            "view.fill_": lambda: x.view(-1)[::3].fill_(2),
            "out=": lambda: torch.add(y, y, out=x),
            "detach().mul_": lambda: x.detach().mul_(2),
            "x[i] =": lambda: x.__setitem__(chosen, 1.0),
            "x[mask] =": lambda: x.__setitem__(y > 1, y[y > 1]),
        },
    )
    with torch.no_grad():
        x.remainder_(7)


@instruction(4)
def write_without_grad(w, r):
    x, y, where = w.any(r), w.any(r), part(r)
    with torch.no_grad():
        x.add_(y, alpha=r.randrange(1, 5))
        x.remainder_(7)
        x[where] = y.t()[where]


@instruction(12)
def write_unseen(w, r):
    """Writes that no version counter of the tensor counts.

    A graph may have kept the tensor or a copy of it, and its gradient would be that of either
    value. So tensors lose their graphs.
    """
    for slot, computed in w.tensors.items():
        if has_graph(computed):
            w.tensors[slot] = computed.detach()
    x, y, factor = w.any(r), w.any(r), r.randrange(1, 4)
    bytes_ = x.data if x.requires_grad or r.randrange(2) else x
    # A copy that is kept from before the write is old after it.
    used = w.place(values(r), r.choice(DEVICES))
    with torch.no_grad():
        before = small(x * used)

    def is_here():
        return bytes_.device.type == "cpu"

    def through_numpy():
        with contextlib.nullcontext() if is_here() else torch.inference_mode():
            array = bytes_.numpy() if is_here() else bytes_
            array += 1

    def each_element(method, function, *others):
        if is_here():
            return getattr(bytes_, method)(*others, function)
        with torch.inference_mode():  # a device has no such method
            return bytes_.copy_(function(bytes_, *others))

    def by_set():
        with torch.no_grad():
            x.set_(w.like(x, y))

    def by_data():
        if x.is_inference():
            raise Skipped  # torch makes a normal tensor of it that has no version counter
        if x.requires_grad and torch.is_inference_mode_enabled():
            # Torch records operators of such a leaf unless all operands are inference tensors,
            # which copies of managed tensors never are.
            raise Skipped
        x.data = w.like(x, y)

    def running_mean():
        # Each mean of SIDE integers is exact.
        mean, variance = bytes_[0], torch.ones(SIDE, dtype=x.dtype)
        rows = y.detach() + 0
        F.batch_norm(rows, mean, w.like(x, variance), training=True, momentum=1.0)
        mean.floor_()

    def fused():
        if not bytes_.is_contiguous():
            raise Skipped  # the kernel walks both operands as they lie in memory
        torch._fused_sgd_(
            [bytes_], [w.like(x, y).contiguous()], [], weight_decay=0.0, momentum=0.0, lr=1.0,
            dampening=0.0, nesterov=False, maximize=False, is_first_step=True,
        )  # fmt: skip

    def unscale():
        found, scale = (torch.full((), v) for v in (0.0, 2.0))
        torch._amp_foreach_non_finite_check_and_unscale_(
            [bytes_], w.like(x, found), w.like(x, scale)
        )

    def in_inference():
        with torch.inference_mode():
            x.detach().add_(y)

    plain = w.like(torch.empty(0), y) if w.is_managed else y.detach().clone()
    w.choose(
        r,
        {
            "data.add_": lambda: bytes_.add_(y),
            "numpy": through_numpy,
            "apply_": lambda: each_element("apply_", lambda v: v * factor),
            "map_": lambda: each_element("map_", lambda a, b: a + b, plain),
            "map2_": lambda: each_element("map2_", lambda a, b, c: a + b - c, plain, plain),
            "set_": by_set,
            "data =": by_data,
            "batch_norm": running_mean,
            "fused SGD": fused,
            "unscale_": unscale,
            "in inference mode": in_inference,
        },
    )
    with torch.no_grad():
        after = small(x * used)
    x.data.remainder_(7)
    w.put(r, small(before + after))


@instruction(6)
def backward(w, r):
    x = w.any(r)
    if not x.requires_grad:
        raise Skipped
    where = part(r)
    (x[where] if r.randrange(2) else x).sum().backward(retain_graph=True)


@instruction(3)
def grad(w, r):
    x, y, higher = w.any(r), w.any(r), bool(r.randrange(2))
    if not (x.requires_grad and y.requires_grad):
        raise Skipped
    (made,) = torch.autograd.grad(
        (x * 2).sum(), y, retain_graph=True, allow_unused=True, create_graph=higher
    )
    if made is not None:
        w.put(r, small(made))


@instruction(3)
def step(w, r):
    """What an optimizer does."""
    drop = r.randrange(2)
    with torch.no_grad():
        for slot in sorted(w.leaves):
            p = w.tensors[slot]
            if p.grad is not None:
                p.sub_(p.grad.remainder(5)).remainder_(7)
                p.grad = None if drop else p.grad.zero_()


@instruction(1)
def hook(w, r):
    x = w.any(r)
    if not x.requires_grad or x._is_view():
        raise Skipped
    x.register_hook(lambda g: g * 2)


@instruction(2)
def deep_copy(w, r):
    x = w.any(r)
    if not x.is_leaf:
        raise Skipped
    w.put(r, copy.deepcopy(x), leaf=x.requires_grad)


@instruction(1)
def saved(w, r):
    file = io.BytesIO()
    torch.save(w.any(r).detach(), file)
    file.seek(0)
    made = torch.load(file)
    w.put(r, w.place(made, "cpu").clone())


@instruction(3)
def delete(w, r):
    slot = r.randrange(SLOTS)
    w.get(slot)
    del w.tensors[slot]
    w.leaves.discard(slot)


@instruction(1)
def collect(w, r):
    gc.collect()


# What places a tensor does nothing in the plain world.


def managed_one(w, r):
    x = w.any(r)
    if not (w.is_managed and isinstance(x, ManagedTensor)):
        raise Skipped
    return x


@instruction(5)
def copied_to(w, r):
    x, place = w.any(r), r.choice(PLACES)
    # An alias of an inference tensor needs no gradient, and as_subclass() makes one.
    made = w.place(x, place) if w.is_managed else x.as_subclass(torch.Tensor).clone()
    w.put(r, made)


@instruction(2)
def pin(w, r):
    up = r.randrange(2)
    x = managed_one(w, r)
    (x.pin if up else x.unpin)()


@instruction(2)
def hint(w, r):
    known = r.choice(
        [{"wont_need": True}, {"reuse": True}, {"reuse": False}, {"read_only": True}, {}]
    )
    managed.hint(managed_one(w, r), **known)


@instruction(4)
def bring(w, r):
    """Moves in place, or is refused, says why, and leaves all as it was."""
    place = r.choice(PLACES)
    x = managed_one(w, r)
    with contextlib.suppress(RuntimeError):
        managed.hint(x, near=place)


@instruction(2)
def budget(w, r):
    device, bytes_ = r.choice(DEVICES), r.choice([None, "900KiB", "700KiB", "500KiB"])
    if w.is_managed:
        managed.budget(device, bytes_)


@instruction(2)
def all_leave(w, r):
    if w.is_managed:
        _C.spill_all()


# Blocks: each has instructions of its own.

READS = ("binary", "unary", "view", "index", "joined", "copied_to")
PLACING = ("hint", "all_leave", "collect")
WRITES = ("write", "write_without_grad", "write_unseen")


def body(r, names, count):
    return [(r.choice(names), r.randrange(2**31)) for _ in range(count)]


def carry_out(w, instructions):
    for name, seed in instructions:
        w.said += ";"
        with contextlib.suppress(Skipped):
            w.carry_out(name, seed)


@instruction(2)
def inference(w, r):
    """Tensors that are made here have no version counter and stay so."""
    with torch.inference_mode():
        carry_out(w, body(r, (*READS, *WRITES), 4))


@instruction(2)
def inside_of_on(w, r):
    """Plain tensors are managed from the first operator on that meets them."""
    instructions = body(r, (*READS, *WRITES), 4)
    with managed.on(disperse=bool(r.randrange(2))) if w.is_managed else contextlib.nullcontext():
        carry_out(w, instructions)


@instruction(3)
def threads(w, r):
    """Two threads read what both have, while what they read is moved and leaves."""
    programs = [body(r, (*READS, *READS, *PLACING), 5) for _ in range(2)]
    worlds = [World(w.is_managed, w.tensors) for _ in programs]
    errors = []
    # Torch takes the GIL under the lock under which it makes or finds a leaf's accumulator, and
    # waits for that lock with the GIL: plain threads may wait for each other for ever in `x.t()`
    # and `x[0]`. It does not if the accumulator is there, has no Python object, and is in a graph.
    with torch.enable_grad():
        made = [x.sum() for x in map(w.tensors.get, sorted(w.leaves)) if x.requires_grad]

    def begin(world, program):
        try:
            carry_out(world, program)
        except Exception as error:
            errors.append(error)

    started = [threading.Thread(target=begin, args=a) for a in zip(worlds, programs, strict=True)]
    for thread in started:
        thread.start()
        if not w.is_managed:
            thread.join()
    for thread in started:
        thread.join()
    del made
    if errors:
        raise errors[0]
    before = dict(w.tensors)
    for slot, world in itertools.product(range(SLOTS), worlds):
        if world.tensors.get(slot) is not before.get(slot):
            w.tensors[slot] = world.tensors[slot]
            w.leaves.discard(slot)


# ---- programs


# Refused by both; by plain torch only; by managed only; at the request of the program.
RIGHT = ("ok", "refused", "laxer", "stricter", "pinned")


@dataclass
class Result:
    """`kind` is one of RIGHT or says what is wrong."""

    kind: str
    told: str = ""
    lines: list = field(default_factory=list)
    made: list = field(default_factory=list)  # weak references to the tensors of the plain world

    @property
    def is_wrong(self):
        return self.kind not in RIGHT


def program(seed):
    """The instructions of a seed, and what makes storages leave meanwhile."""
    r = random.Random(seed)
    names = list(INSTRUCTIONS)
    weights = [INSTRUCTIONS[name][0] for name in names]
    chosen = r.choices(names, weights, k=LENGTH)
    torture = r.choice([None, None, {"odds": 1}, {"odds": 3, "seed": seed}, {"hammer": True}])
    begun = [("new", r.randrange(2**31)) for _ in range(SLOTS // 2)]
    return [*begun, *((name, r.randrange(2**31)) for name in chosen)], torture


def attempt(w, name, seed):
    """The exception that the instruction ended with, or None."""
    w.said = ""
    try:
        w.carry_out(name, seed)
    except Exception as error:
        return error
    return None


def compare(plain, other):
    """What differs between the worlds, or None."""
    if plain.tensors.keys() != other.tensors.keys():
        return f"slots {sorted(plain.tensors)} and {sorted(other.tensors)}"
    for slot, x in plain.tensors.items():
        y = other.tensors[slot]
        if not torch.equal(x.detach(), y.detach().cpu()):
            return f"the values of tensor {slot}, which is on {y.device}"
    for slot in plain.leaves:
        x, y = plain.tensors[slot].grad, other.tensors[slot].grad
        if (x is None) != (y is None):
            return f"leaf {slot} has a gradient in one world only"
        if x is not None and not torch.equal(x, y.cpu()):
            return f"the gradient of leaf {slot}"
        if y is not None and y.device != other.tensors[slot].device:
            return f"leaf {slot} is on {other.tensors[slot].device}, its gradient on {y.device}"
    return None


def run(instructions, torture=None):
    """Runs a program in both worlds and compares them after every few instructions."""
    for device in DEVICES:
        managed.budget(device, None)
    with managed.debug.torture(**torture) if torture else contextlib.nullcontext():
        plain = World(False)
        result = _run(instructions, plain, World(True))
        result.made = plain.made
        return result


def _run(instructions, plain, other):
    lines = []
    for i, (name, seed) in enumerate(instructions):
        expected, got = attempt(plain, name, seed), attempt(other, name, seed)
        placing = isinstance(expected, Skipped) and got is None  # nothing in the plain world
        later = got is not None and plain.said != other.said  # in another instruction of a block
        lines.append(f"{plain.said}{' (skipped)' if isinstance(expected, Skipped) else ''}")
        if isinstance(got, managed.errors.PinConflictError):
            return Result("pinned", str(got), lines)
        if (type(expected) is not type(got) and not placing) or (expected and later):
            refused = any(text in str(expected) for text in REFUSALS)
            if refused and (got is None or later):
                return Result("laxer", str(expected), lines)
            if any(text in str(got) for text in STRICTER):
                return Result("stricter", str(got), lines)
            where = "".join(traceback.format_exception(got)) if got else ""
            return Result("another error", f"{expected!r}\nmanaged: {got!r}\n{where}", lines)
        if name in ("backward", "grad") and not isinstance(expected, Skipped | None):
            return Result("refused", str(expected), lines)  # how far the engine came may differ
        if i % 4 == 0 or i == len(instructions) - 1:
            try:
                wrong = compare(plain, other)
            except Exception as error:
                return Result("unreadable", f"managed: {error!r}", lines)
            if wrong:
                return Result("another value", wrong, lines)
    return Result("ok", "", lines)


def shorten(instructions, torture, deadline):
    """The program without what it fails without, too."""
    size = len(instructions) // 2
    while size and time.monotonic() < deadline:
        begin, shortened = 0, False
        while begin < len(instructions):
            without = instructions[:begin] + instructions[begin + size :]
            if run(without, torture).is_wrong:
                instructions, shortened = without, True
            else:
                begin += size
        if not shortened or size > 1:
            size //= 2
    return instructions


def tell(seed, instructions, torture, result, patience=60):
    """What is known of a program that fails: a text with a shorter program."""
    short = shorten(instructions, torture, time.monotonic() + patience)
    again = run(short, torture)
    if not again.is_wrong:  # it depends on what threads do
        short, again = instructions, result
    return "\n".join(
        [
            f"seed {seed}, torture {torture}: {again.kind}: {again.told}",
            *(f" {line}" for line in again.lines),
            f"  run({short!r}, {torture!r})",
        ]
    )


def in_use():
    return [device_module.memory_allocated(i) for i in range(len(DEVICES))]


def still_in_use(before, patience=20):
    """Bytes beyond those of before; the engine's threads drop their last tensors a little late."""
    deadline = time.monotonic() + patience
    while True:
        empty_queue(DEVICES[0])
        gc.collect()
        left = [now - then for now, then in zip(in_use(), before, strict=True)]
        if max(left) <= 4096:  # torch itself keeps some small tensors
            return []
        if time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def fuzz(first, count):
    """Runs the programs of `count` seeds from `first` on. Returns counts by kind, and failures."""
    counts, failures, made = Counter(), [], []
    gc.collect()
    before = in_use()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(first, first + count):
            instructions, torture = program(seed)
            result = run(instructions, torture)
            counts[result.kind] += 1
            made += result.made
            if result.is_wrong:
                failures.append(tell(seed, instructions, torture, result))
    for device in DEVICES:
        managed.budget(device, None)
    gc.collect()
    # A tensor that a graph has saved and that is then written with what was computed from it is a
    # cycle of torch's, which nothing collects: plain tensors live on as well then.
    if not any(tensor() is not None for tensor in made) and (left := still_in_use(before)):
        failures.append(f"programs {first} to {first + count} left bytes on the devices: {left}")
    return counts, failures


def main(seconds=60, seed=0):
    torch.set_num_threads(1)
    if not ON_CUDA:
        managed.simulate(devices=len(DEVICES), memory="64MiB")
    collect_and_freeze()
    begun, counts = time.monotonic(), Counter()
    first = int(seed) * 10_000_000
    print(f"seed {seed}: programs from {first} on, on {', '.join(DEVICES)}", flush=True)
    while time.monotonic() - begun < float(seconds):
        found, failures = fuzz(first + counts.total(), count=10)
        counts += found
        for failure in failures:
            print(failure, flush=True)
        if failures:
            return 1
    print(f"{counts.total()} programs in {time.monotonic() - begun:.0f} s: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
