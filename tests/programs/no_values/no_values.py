"""Checks on devices without values, which need a process of their own: test_no_values.py runs them.

Each function is a test. Four devices of 64 GiB, more than this machine has.
"""

import copy
import ctypes
import gc
import io
import os
import resource
import signal
import sys
import threading
import warnings

import pytest
import torch
from torch import nn

import managed
from managed import ManagedModule, ManagedTensor, _sim
from managed._backend import C

GIB = 1024**3


def put(t):
    return t.as_subclass(ManagedTensor).to("sim:0")


def unknown(*sizes, dtype=torch.float32):
    return torch.empty(sizes, dtype=dtype, device="sim:0")


def known(t):
    return _sim.is_known(t)


def asks(function, what="which devices without values"):
    """What `function` returns; it warns once of an unknown value."""
    with pytest.warns(UserWarning, match=what) as caught:
        result = function()
    assert len(caught) == 1
    return result


def used(device=0):
    return torch.sim.memory_allocated(device)


def memory_of_process():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# ---- memory


def check_that_bytes_count_and_take_no_memory():
    before, real = used(), memory_of_process()
    x = torch.randn(1 << 16, 1 << 16, device="sim:0")  # 16 GiB
    y = x @ x
    assert used() - before == 2 * 16 * GIB
    assert memory_of_process() - real < GIB // 2  # torch imports what tells forms
    del x, y
    assert used() == before


def check_that_a_full_device_says_so():
    kept = unknown(40 * GIB, dtype=torch.uint8)
    with pytest.raises(torch.OutOfMemoryError, match=r"Capacity 64.0 GiB .*used 40.0 GiB"):
        unknown(30 * GIB, dtype=torch.uint8)
    del kept


def check_that_reading_the_bytes_is_a_fault():
    large = unknown(1 << 20)
    address = large.data_ptr()
    assert address
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(address, 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSEGV


def check_that_resizing_counts():
    before = used()
    x = unknown(4 << 20)
    x.resize_(8 << 20)
    assert used() - before == 32 << 20
    assert x.shape == (8 << 20,)


# ---- what is known


def check_that_small_integers_are_computed():
    x = torch.arange(10, device="sim:0")
    y = torch.tensor([3, 1, 2]).to("sim:0")
    assert known(x)
    assert known(y)
    assert (x * 2 + 1).tolist() == list(range(1, 21, 2))
    assert y.sort().values.tolist() == [1, 2, 3]
    assert bool((x == 7).any())
    assert not bool((x > 9).any())
    assert torch.cat([x, y]).cumsum(0)[-1].item() == 51
    assert torch.tril(torch.ones(4, 4, dtype=torch.bool, device="sim:0")).sum().item() == 10


def check_that_every_operator_on_known_values_is_the_cpus():
    torch.manual_seed(0)
    a, b = torch.randint(-9, 9, (5, 7)), torch.randint(1, 9, (5, 7))
    functions = (
        torch.add, torch.sub, torch.mul, torch.floor_divide, torch.remainder, torch.maximum,
        torch.eq, torch.lt, torch.logical_and, lambda x, y: x.t() @ y,
        lambda x, y: x[:, 2:5].sum(1),
        lambda x, y: torch.where(x > y, x, y), lambda x, y: x.gather(1, y - 1 - (y > 7) * 4),
        lambda x, y: torch.stack([x, y]).flip(0), lambda x, y: x.masked_fill(y > 4, 0),
        lambda x, y: x.float().mean(1), lambda x, y: (x > 0).nonzero(), lambda x, y: x[y > 4],
        lambda x, y: torch.unique(x), lambda x, y: y.unique(return_counts=True)[1],
        lambda x, y: torch.bincount(y.flatten()), lambda x, y: y.repeat_interleave(y[:, 0], dim=0),
    )  # fmt: skip
    for function in functions:
        result = function(a.to("sim:0"), b.to("sim:0"))
        assert known(result)
        assert torch.equal(result.cpu(), function(a, b))


def check_that_writes_into_known_values_are_seen():
    x = torch.zeros(8, dtype=torch.long, device="sim:0")
    x[2:4] = 5
    x.view(2, 4)[1] += 1
    x[0] = torch.tensor(9)
    assert x.tolist() == [9, 0, 5, 5, 1, 1, 1, 1]
    x.copy_(torch.arange(8))
    assert x.tolist() == list(range(8))


def check_that_unknown_values_spread():
    x, index = unknown(4, 4), torch.arange(4, device="sim:0")
    assert not known(x)
    assert not known(x + 1)
    assert not known(x[0])
    assert not known(x[index])
    y = torch.zeros(4, dtype=torch.long, device="sim:0")
    assert known(y)
    y[1] = x.argmax()
    assert not known(y)
    y.fill_(3)
    assert known(y)
    assert y.tolist() == [3] * 4


def check_that_what_is_written_in_part_stays_unknown():
    x = unknown(8, dtype=torch.long)
    x[:4] = 1
    assert not known(x)
    x[4:] = 1
    assert not known(x)
    assert asks(lambda: x[0].item()) == 0


def check_that_large_or_random_values_are_unknown():
    assert known(torch.zeros(1 << 17, dtype=torch.long, device="sim:0"))
    assert not known(torch.zeros((1 << 17) + 1, dtype=torch.long, device="sim:0"))
    assert known(torch.ones(128, device="sim:0"))
    assert not known(torch.ones(129, device="sim:0"))
    assert not known(torch.randint(9, (4,), device="sim:0"))
    assert not known(torch.randn(4).to("sim:0") + torch.randn(4, device="sim:0"))


def check_that_known_values_that_grow_large_take_no_memory():
    real = memory_of_process()
    long = torch.arange(10**9, device="sim:0")
    row = torch.arange(1 << 17, device="sim:0")
    square = row[:, None] * row[:1000]
    assert not known(long)
    assert not known(square)
    assert square.shape == (1 << 17, 1000)
    assert memory_of_process() - real < 64 * 1024**2


def check_that_an_out_argument_is_known_or_not():
    x = torch.arange(4, device="sim:0")
    out = torch.empty(0, dtype=torch.long, device="sim:0")
    torch.add(x, 1, out=out)
    assert out.tolist() == [1, 2, 3, 4]
    torch.add(x, unknown(4, dtype=torch.long), out=out)
    assert not known(out)
    grown = torch.empty(0, dtype=torch.long, device="sim:0")
    torch.arange(10**7, out=grown)
    assert grown.shape == (10**7,)
    assert not known(grown)
    assert grown.untyped_storage().nbytes() == 8 * 10**7


def check_that_copies_keep_what_is_known():
    x = torch.arange(6, device="sim:0").reshape(2, 3)
    y = x.to("sim:1")
    assert known(y)
    assert torch.equal(y.cpu(), torch.arange(6).reshape(2, 3))
    assert x.t().contiguous().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert x.to(torch.float32).to("sim:2").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert known(copy.deepcopy(x))
    assert not known(copy.deepcopy(unknown(3)))


def check_that_known_values_survive_a_spill():
    numbers = torch.randint(100, (4096,))
    x, lost = put(numbers), put(torch.randn(4096))
    before = managed.stats()["spill"]
    assert C.spill_all() >= 2
    assert managed.stats()["spill"] >= before + 2
    assert torch.equal(x[100:200].cpu(), numbers[100:200])  # from where it is
    assert torch.equal((x + 1).cpu(), numbers + 1)
    C.spill_all()
    assert x.sum().item() == numbers.sum().item()
    assert not known(lost * 1)
    asks(lambda: lost.cpu())
    C.spill_all()
    asks(lambda: lost.cpu())


# ---- what is asked


def check_that_numbers_are_zero_and_a_warning_tells():
    x = unknown(3, 3)
    for ask, answer in (
        (lambda: x.sum().item(), 0.0),
        (lambda: x.argmax().item(), 0),
        (lambda: bool(x.sum() > 0), False),
        (lambda: x.to(torch.complex64)[0, 0].item(), 0j),
        (lambda: torch.equal(x, x + 1), False),
        (lambda: x.cpu().tolist(), [[0.0] * 3] * 3),
    ):
        got = asks(ask)
        assert got == answer
        assert type(got) is type(answer)


def check_that_a_place_warns_once():
    x = unknown(2).sum()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            x.item()
        x.item()
    assert len(caught) == 2
    assert {w.filename for w in caught} == {__file__}
    assert "Triggered internally" not in str(caught[0].message)


def check_that_equality_is_known_where_it_is():
    x = unknown(3)
    assert not torch.equal(x, unknown(4))
    ids = unknown(3, dtype=torch.long)
    assert torch.equal(ids, ids)
    assert torch.equal(torch.arange(3, device="sim:0"), torch.arange(3, device="sim:0"))


def check_that_waiting_for_a_truth_ends():
    x = unknown(2)
    asked = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def wait():
            nonlocal asked
            while not (x > 0).all():
                asked += 1

        with pytest.raises(RuntimeError, match=r"no_values.py:\d+ asked 1000 times whether"):
            wait()
        assert asked == 999
        while not (x > 0).all():  # another place
            asked += 1
            if asked > 1500:
                break


def check_that_all_is_finite():
    x = unknown(1 << 20)
    assert torch.isfinite(x).all().item() is True
    assert bool(torch.isfinite(x).all() & torch.isfinite(x.sum()))
    assert not asks(lambda: bool(torch.isnan(x).any()))
    assert torch.isfinite(torch.tensor([1.0, float("inf")]).to("sim:0")).tolist() == [True, False]


def check_that_shapes_which_depend_on_values_are_refused():
    x = unknown(4, 4)
    for function in (
        torch.nonzero, torch.unique, lambda t: t[t > 0], lambda t: t.masked_select(t > 0),
        lambda t: torch.bincount(t.long().flatten()), lambda t: torch.unique_consecutive(t),
        lambda t: t.repeat_interleave(t[0].long(), dim=0),
    ):  # fmt: skip
        before = used()
        with pytest.raises(NotImplementedError, match=r"the shape of what aten::\w+.* depends on"):
            function(x)
        gc.collect()
        assert used() == before
    mask = torch.tensor([True, False, True, True]).to("sim:0")
    assert x[mask].shape == x[mask.cpu()].shape == (3, 4)
    x[x > 0] = 0
    x.masked_fill_(x > 1, 0)
    with pytest.raises(NotImplementedError, match=r"strided tensors only|does not tell"):
        x.to_sparse() @ x


def check_that_nothing_is_saved():
    from safetensors.torch import save

    x = unknown(4, 4)
    for tensor in (x, x.as_subclass(ManagedTensor)):
        with pytest.raises(RuntimeError, match="64 bytes on sim:0 cannot be saved"):
            torch.save({"x": tensor}, io.BytesIO())
        with pytest.raises(RuntimeError, match="cannot be saved"):
            save({"x": tensor})
        with pytest.raises(TypeError, match="sim:0"):
            tensor.numpy()
    file = io.BytesIO()
    torch.save(torch.arange(4, device="sim:0"), file)
    file.seek(0)
    assert torch.load(file, map_location="cpu").tolist() == [0, 1, 2, 3]


def check_how_tensors_are_printed():
    assert repr(unknown(2, 3)) == "tensor(..., size=(2, 3), device='sim:0')"
    assert repr(torch.arange(3, device="sim:0")) == "tensor([0, 1, 2], device='sim:0')"
    parameter = nn.Parameter(unknown(2).as_subclass(ManagedTensor))
    assert "size=(2,)" in repr(parameter)
    assert "requires_grad=True" in repr(parameter)


# ---- forms


def check_that_forms_are_remembered():
    q = unknown(2, 4, 8, 16)

    def attend():
        return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    first = attend()
    called = []

    def note(frame, event, _):
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    second = attend()
    sys.setprofile(None)
    assert called == ["attend"]
    assert second.shape == first.shape
    assert second.stride() == first.stride()
    assert attend().data_ptr() != second.data_ptr()


def check_that_a_form_is_that_of_its_call():
    x = unknown(4, 6)
    for _ in range(2):
        assert x.sum(0).shape == (6,)
        assert x.sum(1).shape == (4,)
        assert x.t().matmul(unknown(4, 2)).shape == (6, 2)
        assert (x + unknown(4, 6, dtype=torch.float64)).dtype == torch.float64
        assert (unknown(3, dtype=torch.long) / 2).dtype == torch.float32
        assert (x.to(memory_format=torch.contiguous_format).t() + 1).stride() == (1, 6)
    torch.set_default_dtype(torch.float64)
    try:
        assert (unknown(3, dtype=torch.long) / 2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    a, b = x.split(2)
    a += 1
    assert a.data_ptr() == x.data_ptr()
    assert b.storage_offset() == 12


def check_that_results_which_share_bytes_do():
    x = unknown(8, 8)
    for _ in range(2):
        view = x.view(64)[3:]
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert x.reshape(4, 16).data_ptr() == x.data_ptr()
        assert x.relu_() is x
    out = torch.empty(0, device="sim:0")
    for n in (3, 5, 3):
        torch.add(unknown(n), 1, out=out.resize_(0))
        assert out.shape == (n,)


def check_that_errors_are_torchs():
    with pytest.raises(RuntimeError, match=r"must match the size|broadcast|shape"):
        unknown(3) + unknown(4)
    with pytest.raises(RuntimeError, match="at least two devices, sim:0 and sim:1"):
        unknown(3) + unknown(3).to("sim:1")
    with pytest.raises(RuntimeError, match="at least two devices, sim:0 and cpu"):
        unknown(3) + torch.ones(3)


# ---- models


def check_that_a_module_on_meta_gets_its_bytes_where_it_is_placed():
    before = [used(d) for d in range(4)]
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(8)])
        model.append(nn.BatchNorm1d(4096))
    model[3].weight = model[0].weight
    kept = list(model.parameters())
    ManagedModule.from_module(model).cuda(disperse=True)
    assert [id(p) for p in model.parameters()] == [id(p) for p in kept]
    assert {p.device.index for p in kept} == {0, 1, 2, 3}
    assert model[8].running_mean.device == kept[-1].device
    total = sum(b.nbytes for b in (*model.parameters(), *model.buffers()))
    assert sum(used(d) for d in range(4)) - sum(before) == total
    assert all(C.is_managed(p) for p in kept)
    assert model[3].weight is model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(put(torch.empty(2, 4096))).sum().backward()
    optimizer.step()
    with torch.device("meta"):
        other = ManagedModule.from_module(nn.Linear(8, 8))
    assert other.to("sim:2").weight.device == torch.device("sim:2")


def check_that_a_module_on_meta_stays_there_if_it_does_not_fit():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2 * GIB + (3 * GIB)))
    before = used(1)
    with pytest.raises(managed.OutOfMemoryError):
        ManagedModule.from_module(model).to("sim:1")
    assert all(p.is_meta for p in model.parameters())
    assert used(1) == before
    with pytest.raises(NotImplementedError, match="to_empty"):
        model.to("cpu")
    assert all(p.is_meta for p in model.parameters())


def check_that_a_scaler_steps():
    model = put_module(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("sim", init_scale=8.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            with torch.autocast("sim", torch.float16):
                loss = model(put(torch.empty(4, 64))).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 8.0
    assert model.weight.grad is not None


def put_module(module):
    return ManagedModule.from_module(module).to("sim:0")


def check_that_what_does_not_fit_spills():
    managed.stats(reset=True)
    with managed.budget("sim:0", "3GiB"), managed.budget("sim:1", "0MiB"):
        layers = [put(torch.empty(1 << 28)) for _ in range(5)]  # GiB each
        for layer in layers:
            layer.mul_(2)
        assert used() <= 3 * GIB
    moved = managed.stats()
    assert moved["spill_bytes"] >= 2 * GIB
    assert moved["restore_bytes"] >= 2 * GIB


def check_that_torture_writes_nothing():
    with managed.debug.torture(seed=3):
        x = put(torch.empty(1 << 22))
        for _ in range(20):
            x = x * 2 + 1
        model = put_module(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)))
        model(put(torch.empty(64, 512))).sum().backward()
    assert x.shape == (1 << 22,)


def check_that_threads_share_the_addresses():
    failures = []

    def work(device):
        try:
            for n in range(200):
                x = torch.arange(n + 1, device=device)
                y = torch.empty(1 << 20, device=device) * 2
                assert x.sum().item() == n * (n + 1) // 2
                assert y.shape == (1 << 20,)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"sim:{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def check_that_a_forked_child_goes_on():
    x = torch.arange(5, device="sim:0")
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        fine = (x + 1).tolist() == [1, 2, 3, 4, 5] and (unknown(1 << 20) * 2).shape == (1 << 20,)
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0


def check_the_hosts_memory():
    assert C.host_memory()["limit"] == 300 * GIB
    with managed.budget("cpu", "1GiB"):
        assert C.host_memory()["limit"] == GIB
    assert C.host_memory()["limit"] == 300 * GIB


def check_that_time_passes_on_the_clock():
    start = torch.sim.elapsed()
    x = unknown(8192, 8192)
    x @ x
    torch.sim.synchronize(0)
    # t4: 8.1 Tflop/s x 0.85
    assert torch.sim.elapsed() - start == pytest.approx(2 * 8192**3 / (8.1e12 * 0.85), rel=0.02)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}


def main():
    """Runs all checks, and writes what each failed with to the file of the first argument."""
    import json
    import traceback

    warnings.simplefilter("error")
    torch.set_num_threads(1)
    managed.simulate(4, "64GiB", values=False, host_memory="300GiB")
    failed = {}
    for name, check in CHECKS.items():
        gc.collect()
        try:
            check()
        except BaseException:
            failed[name] = traceback.format_exc()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(failed, file)


if __name__ == "__main__":
    main()
