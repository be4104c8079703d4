"""Random programs on several virtual GPUs and streams, once for each seed: the CPU's bits.

    python -m managed.virtual_gpu --devices 3x320MiB streams.py FIRST COUNT

Before each operator the program chooses a stream on each device, and lets all of them wait for what
torch asks for and no more: what is read has been written, what is written has been read. Operands
are anywhere, tensors die while streams use them, and bytes leave, are lent and are written past
managed in between. The first seed that gives other bits, or a report of the checker, ends it.
"""

import contextlib
import ctypes
import random
import sys
from dataclasses import dataclass, field

import torch
from seeds import MIB, gpu, races

import managed
from managed import _C, ManagedTensor

ACTIONS, MOST = 150, 24  # in a program, and tensors
SIZES = (1 << 14, 1 << 18)  # elements of four bytes
PRIME = 1009  # values stay below it


@dataclass
class Pair:
    """A managed tensor, and on the host what it should be."""

    there: torch.Tensor
    here: torch.Tensor
    written: list[torch.cuda.Event]
    read: list[torch.cuda.Event] = field(default_factory=list)
    plain: list[torch.Tensor] = field(default_factory=list)  # over the same bytes
    storage: object = None  # while there are such


class Program:
    def __init__(self, seed, streams):
        self.choose = random.Random(seed)
        self.streams = [list(s) for s in streams]
        self.live, self.sources, self.done = [], [], 0

    # ---- order

    def device(self):
        return f"cuda:{self.choose.randrange(len(self.streams))}"

    def ends(self):
        return [s.record_event() for s in self.now]

    @contextlib.contextmanager
    def operator(self, reads=(), writes=()):
        self.now = [self.choose.choice(s) for s in self.streams]
        with contextlib.ExitStack() as current:
            for s in self.choose.sample(self.now, len(self.now)):
                current.enter_context(torch.cuda.stream(s))
            before = [e for p in reads for e in p.written]
            before += [e for p in writes for e in p.written + p.read]
            for s in self.now:
                for e in before:
                    s.wait_event(e)
            yield
            for p in reads:
                p.read += self.ends()
            for p in writes:
                p.written, p.read = self.ends(), []

    # ---- tensors

    def values(self, size):
        return torch.arange(size, dtype=torch.int32) % self.choose.randrange(3, PRIME)

    def pinned(self, size):
        """Of the host, as long as a copy may read it."""
        self.sources.append(self.values(size).pin_memory())
        return self.sources[-1]

    def keep(self, there, here):
        self.live.append(Pair(there, here, self.ends()))

    def some(self, count):
        """Of one size; one may be there more than once."""
        first = self.choose.choice(self.live)
        alike = [p for p in self.live if p.here.numel() == first.here.numel()]
        return [first, *self.choose.choices(alike, k=count - 1)]

    # ---- what a program does

    def make(self):
        size, device = self.choose.choice(SIZES), self.device()
        with self.operator():
            if self.choose.random() < 0.7:
                here = self.values(size)
                late = self.choose.random() < 0.5
                there = here.as_subclass(ManagedTensor).to(device, non_blocking=late)
            else:
                here = self.pinned(size)
                there = here.to(device, non_blocking=True).as_subclass(ManagedTensor).clone()
            self.keep(there, here.clone())

    def result(self):
        x, y, z = self.some(3)
        with self.operator((x, y, z)):
            there, here = (torch.where(a > 5, b, c) + a for a, b, c in self.both(x, y, z))
            self.keep(there, here)

    def both(self, *pairs):
        return [p.there for p in pairs], [p.here for p in pairs]

    def write(self):
        x, y = self.some(2)
        with self.operator((y,), (x,)):
            for a, b in self.both(x, y):
                a.add_(b).remainder_(PRIME)

    def write_part(self):
        x, y = self.some(2)
        part = self.choose.choice((4, x.here.numel() // 2))
        with self.operator((y,), (x,)):
            for a, b in self.both(x, y):
                a[:part].copy_(b[-part:] + 1)

    def write_two(self):
        x, y, z = self.some(3)
        if x is y or y is z or x is z:
            return
        where = self.device()
        with self.operator((x,), (y, z)):
            for a, b, c in self.both(x, y, z):
                rows = a.view(2, -1)
                found = torch.zeros(rows.shape[1], dtype=torch.int64)
                if a is x.there:
                    found = found.as_subclass(ManagedTensor).to(where)
                torch.max(rows, 0, out=(b[: rows.shape[1]], found))
                c[: rows.shape[1]].copy_(found)

    def write_from_host(self):
        (x,) = self.some(1)
        late = self.choose.random() < 0.3
        source = self.pinned(x.here.numel()) if late else self.values(x.here.numel())
        with self.operator((), (x,)):
            x.there.add_(source.as_subclass(ManagedTensor)).remainder_(PRIME)
            x.here.add_(source).remainder_(PRIME)

    def copy(self):
        x, y = self.some(2)
        late = self.choose.random() < 0.5
        with self.operator((y,), (x,)):
            for a, b in self.both(x, y):
                a.copy_(b, non_blocking=late)

    def to(self):
        (x,) = self.some(1)
        late = self.choose.random() < 0.5
        with self.operator((x,)):
            there = x.there.to(self.device(), non_blocking=late, copy=True)
            self.keep(there, x.here.clone())

    def differentiate(self):
        x, y = self.some(2)
        with self.operator((x, y)):
            a, b = (p.there.float().remainder_(100) for p in (x, y))
            a.requires_grad_()
            (a * b).sum().backward()
            self.keep(a.grad.int(), y.here % 100)
            b = b.to(self.device()).requires_grad_()
            ((a.detach() + 1) * b).sum().backward()
            self.keep(b.grad.int(), x.here % 100 + 1)

    # ---- and what it does past managed

    def lend(self):
        (x,) = self.some(1)
        with self.operator((), (x,)):
            x.storage = x.there.untyped_storage()
            plain = torch.empty(0, dtype=torch.int32, device=x.there.device).set_(x.storage)
            x.plain.append(plain[: x.here.numel()])
            x.plain[-1].add_(1)
            x.here.add_(1)
        if self.choose.random() < 0.5:
            x.plain, x.storage = [], None

    def write_lent(self):
        lent = [p for p in self.live if p.plain]
        if not lent:
            return
        x = self.choose.choice(lent)
        with self.operator((), (x,)):
            x.plain[0].add_(1)
            x.here.add_(1)
        if self.choose.random() < 0.3:
            x.plain, x.storage = [], None

    def write_by_pointer(self):
        (x,) = self.some(1)
        source, device = self.pinned(x.here.numel()), x.there.device
        with self.operator((), (x,)), torch.cuda.device(device):
            to, of, stream = map(
                ctypes.c_void_p,
                (x.there.data_ptr(), source.data_ptr(), self.now[device.index].cuda_stream),
            )
            assert not gpu.cudaMemcpyAsync(to, of, ctypes.c_size_t(source.nbytes), 1, stream)
            x.here.copy_(source)

    def read(self):
        (x,) = self.some(1)
        with self.operator((x,)):
            if self.choose.random() < 0.5:
                found = x.there.cpu()
            else:
                found = torch.empty(x.here.shape, dtype=torch.int32).pin_memory()
                found.copy_(x.there, non_blocking=True)
                self.now[x.there.device.index].synchronize()
            assert torch.equal(found.as_subclass(torch.Tensor), x.here), f"after {self.done}"

    # ---- and what happens to it

    def die(self):
        if len(self.live) > 4:
            self.live.pop(self.choose.randrange(len(self.live)))

    def leave(self):
        with self.operator():
            _C.spill_all()

    def have_less_room(self):
        with self.operator():
            managed.budget(self.device(), self.choose.choice((None, 20 * MIB, 32 * MIB)))

    def another_stream(self):
        streams = self.choose.choice(self.streams)
        streams[-1] = torch.cuda.Stream(streams[-1].device)

    def wait(self):
        for s in self.streams:
            torch.cuda.synchronize(s[0].device)

    def run(self):
        for _ in range(5):
            self.make()
        for self.done in range(ACTIONS):
            self.choose.choices(list(OFTEN), list(OFTEN.values()))[0](self)
            while len(self.live) > MOST:
                self.die()
        for x in self.live:
            with self.operator((x,)):
                assert torch.equal(x.there.cpu().as_subclass(torch.Tensor), x.here), "at the end"


OFTEN = {
    Program.make: 3,
    Program.result: 9,
    Program.write: 6,
    Program.write_part: 5,
    Program.write_two: 2,
    Program.write_from_host: 2,
    Program.copy: 2,
    Program.to: 2,
    Program.differentiate: 2,
    Program.lend: 2,
    Program.write_lent: 2,
    Program.write_by_pointer: 0.2,
    Program.read: 2,
    Program.die: 6,
    Program.leave: 1,
    Program.have_less_room: 1,
    Program.another_stream: 0.5,
    Program.wait: 0.3,
}


def main():
    first, count = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    devices = [torch.empty(1, device=f"cuda:{i}").device for i in range(torch.cuda.device_count())]
    streams = [
        [torch.cuda.default_stream(d)] + [torch.cuda.Stream(d) for _ in "12"] for d in devices
    ]
    managed.stats(reset=True)
    for seed in range(first, first + count):
        gpu.vgpu_seed(ctypes.c_ulonglong(seed))
        try:
            Program(seed, streams).run()
        except Exception as e:
            raise AssertionError(f"seed {seed}: {races()}") from e
        report = races()
        assert not report, f"seed {seed}: {report}"
        for d in devices:
            managed.budget(d, None)
            torch.cuda.synchronize(d)  # nobody reads the sources any more
    told = managed.stats()
    print(*(f"{k}={told[k]}" for k in ("spill", "drop", "restore", "copy", "write_back")))


if __name__ == "__main__":
    main()
