"""Torch's CUDA build on GPUs made of software: programs that know nothing of it."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from support.interpreters import WARNINGS
from support.paths import ROOT

from managed import virtual_gpu

without_cuda = pytest.mark.skipif(torch.version.cuda is not None, reason="torch has CUDA")
with_cuda = pytest.mark.skipif(torch.version.cuda is None, reason="needs torch's CUDA build")

# A thread of torch's engine lets go of the last pass when the program has its result, and aborts if
# the interpreter ends meanwhile: hence the moment in the end.
BEGIN = """
import atexit, copy, time, torch
from torch import nn
torch.set_num_threads(1)
atexit.register(time.sleep, 0.2)


def train(make, x, optimizer=torch.optim.AdamW, **options):
    '''Four steps on the CPU and on a virtual GPU, from the same seed: the same bits.'''
    torch.manual_seed(0)
    here = make()
    there = copy.deepcopy(here).to("cuda:1")
    told = []
    for net, device in ((here, "cpu"), (there, "cuda:1")):
        torch.manual_seed(3)
        steps, losses = optimizer(net.parameters(), lr=0.01, **options), []
        for _ in range(4):
            steps.zero_grad()
            out = net(x.to(device))
            loss = (out[0] if isinstance(out, tuple) else out).square().mean()
            loss.backward()
            steps.step()
            losses.append(loss.item())
        told.append((losses, [p.detach().cpu() for p in net.parameters()]))
    assert all(p.is_cuda for p in there.parameters())
    assert told[0][0] == told[1][0], told
    assert all(map(torch.equal, told[0][1], told[1][1]))
"""


def launch(*program, devices="2x1GiB", status=0, timeout=300, **environment):
    command = [sys.executable, *WARNINGS, "-m", "managed.virtual_gpu", "--devices", devices]
    done = subprocess.run(
        [*command, *program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def run(code, **keywords):
    done = launch("-c", BEGIN + textwrap.dedent(code), **keywords)
    assert done.stderr == "", done.stderr
    return done.stdout


@without_cuda
def test_a_build_without_cuda_says_what_to_install():
    done = launch("-c", "pass", status=1)
    assert "built without CUDA" in done.stderr
    assert "Install" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        ("many", "is no size"),
        ("9x1GiB", "1 to 8 virtual GPUs, not 9"),
        ("0x1GiB", "1 to 8 virtual GPUs, not 0"),
        ("2x1MiB", "at least 128 MiB"),
    ],
)
def test_devices_that_make_no_sense(devices, says):
    with pytest.raises(ValueError, match=says):
        virtual_gpu.sizes(devices)


def test_devices_by_number_or_one_by_one():
    assert virtual_gpu.sizes("2x1GiB") == virtual_gpu.sizes("1GiB,1GiB") == [2**30] * 2
    assert virtual_gpu.sizes("1GiB,512MiB") == [2**30, 2**29]


@with_cuda
def test_a_script_with_its_arguments(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "x = torch.ones(3, device='cuda')\n"
        "print(__name__, sys.argv[1:], x.is_cuda, torch.cuda.device_count(), (x + 1).tolist())\n"
        "print(torch.cuda.mem_get_info(1)[1])\n"
    )
    done = launch(str(script), "--lr", "3", devices="1GiB,2GiB")
    assert done.stdout == f"__main__ ['--lr', '3'] True 2 [2.0, 2.0, 2.0]\n{2**31}\n"
    assert done.stderr == ""


OPTIMIZERS = ("foreach=True", "foreach=False", "fused=True", "foreach=True, amsgrad=True")


@with_cuda
def test_models_train_to_the_same_bits():
    run(f"""
        x = torch.randn(16, 8)
        net = lambda: nn.Sequential(
            nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.3), nn.Linear(32, 2)
        )
        for options in {[f"dict({o})" for o in OPTIMIZERS]}:
            train(net, x, **eval(options))
        for optimizer in (torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adam):
            train(net, x, optimizer)
        train(lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)
        ), torch.randn(2, 3, 12, 12))
        train(lambda: nn.LSTM(4, 8, 2), torch.randn(5, 2, 4))
        train(lambda: nn.GRU(4, 8, 2), torch.randn(5, 2, 4))
        train(lambda: nn.TransformerEncoderLayer(16, 2, 32), torch.randn(5, 2, 16))
    """)


@with_cuda
def test_attention_is_the_cpus():
    run("""
        attend = nn.functional.scaled_dot_product_attention
        for shape in ((2, 3, 5, 8), (3, 5, 8)):
            for mask, causal in ((None, False), (None, True), (torch.rand(5, 5) > 0.3, False)):
                q = torch.randn(shape, requires_grad=True)
                g = q.detach().cuda().requires_grad_()
                a = attend(q, q, q, mask, is_causal=causal)
                b = attend(g, g, g, mask if mask is None else mask.cuda(), is_causal=causal)
                a.sum().backward()
                b.sum().backward()
                assert torch.equal(a, b.cpu()) and torch.equal(q.grad, g.grad.cpu())
    """)


@with_cuda
def test_random_numbers_are_the_cpus_and_their_state_is_cudas():
    run("""
        def draws(device):
            torch.manual_seed(5)
            sizes = (3, 7, 1, 1000, 3)
            return [f(n, device=device).cpu() for n in sizes for f in (torch.randn, torch.rand)]
        assert all(map(torch.equal, draws("cpu"), draws("cuda")))
        state = torch.cuda.get_rng_state()
        expected = torch.randn(3, device="cuda"), torch.rand(700, device="cuda")
        torch.cuda.manual_seed_all(9)
        for _ in range(40):  # more places than are kept
            torch.rand(5, device="cuda")
        torch.cuda.set_rng_state(state)
        again = torch.randn(3, device="cuda"), torch.rand(700, device="cuda")
        assert all(map(torch.equal, expected, again))
        a, b = torch.Generator("cuda").manual_seed(1), torch.Generator("cuda")
        b.graphsafe_set_state(a.graphsafe_get_state())
        mixed = [torch.rand(4, generator=g, device="cuda").cpu() for g in (a, b, a)]
        expected = torch.rand(12, generator=torch.Generator().manual_seed(1))
        assert torch.equal(torch.cat(mixed), expected)
    """)


@with_cuda
def test_copies_of_any_layout():
    run("""
        x = torch.arange(24.0).view(2, 3, 4)
        there = x.to("cuda:1")
        assert torch.equal(there.permute(2, 0, 1).contiguous().cpu(), x.permute(2, 0, 1))
        assert torch.equal(there.mT.to("cuda:0", torch.float64).cpu(), x.mT.double())
        y = torch.zeros(4, 3, 2, device="cuda:0")
        y.permute(2, 1, 0).copy_(there)
        assert torch.equal(y.cpu(), x.permute(2, 1, 0))
        y[::2] = x.permute(2, 1, 0)[::2] + 1
        assert y[2, 1, 1].item() == x[1, 1, 2] + 1
        z = torch.view_as_complex(x.view(6, 2, 2))
        assert torch.equal(z.cuda().conj().cpu(), z.conj())
        grown = torch.add(there, 1, out=torch.empty(0, device="cuda:1"))
        assert torch.equal(grown.cpu(), x + 1)
    """)


@with_cuda
def test_what_has_no_way_is_refused():
    run("""
        def refused(function, *words):
            try:
                function()
            except RuntimeError as error:
                assert all(word in str(error) for word in words), error
            else:
                raise AssertionError("it ran")
        x = torch.ones(3, device="cuda")
        dropout = torch.ops.aten._fused_dropout
        refused(lambda: dropout(x, 0.5), "aten::_fused_dropout cannot run on virtual GPUs")
    """)


@with_cuda
def test_compiled_kernels_are_refused():
    done = launch("-c", "import torch; torch.cuda._sleep(1)", status=1)
    assert "code for a real GPU and cannot run here" in done.stderr


@with_cuda
def test_triton_says_that_it_cannot_and_what_can():
    code = "import torch\nf = torch.compile(lambda x: x.sin() + 1)\nf(torch.ones(8, device='cuda'))"
    said = launch("-c", code, status=1).stderr
    assert "Triton's kernels are code for a real GPU" in said
    assert "aot_eager" in said
    run("""
        compiled = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")
        x = torch.rand(8)
        assert torch.equal(compiled(x.cuda()).cpu(), x.sin() + 1)
    """)


@with_cuda
def test_nccl_says_that_it_cannot_and_gloo_can():
    group = """
        import torch.distributed as dist
        store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
        dist.init_process_group(BACKEND, store=store, rank=0, world_size=1)
        x = torch.full((3,), 2.0, device="cuda")
        dist.all_reduce(x)
        net = nn.parallel.DistributedDataParallel(nn.Linear(3, 3).cuda())
        net(x).sum().backward()
        assert net.module.weight.grad.eq(2).all()
        dist.destroy_process_group()
    """
    code = BEGIN + textwrap.dedent(group)
    said = launch("-c", code.replace("BACKEND", "'nccl'"), status=1).stderr
    assert "NCCL's kernels are code for a real GPU" in said
    launch("-c", code.replace("BACKEND", "'gloo'"))


@with_cuda
def test_the_operands_of_a_collective_come_home_and_stay():
    """A backend may use their pointers when the call has returned, also those in lists of lists."""
    run("""
        import torch.distributed as dist
        import managed
        store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        for give in (
            lambda to, x: dist.all_to_all_single(to, x),
            lambda to, x: dist.all_gather([to], x),
            lambda to, x: dist.gather(x, [to]),
            lambda to, x: dist.scatter(to, [x]),
        ):
            x, to = (
                t.as_subclass(managed.ManagedTensor).cuda()
                for t in (torch.arange(2.0**16), torch.zeros(2**16))
            )
            managed._C.spill_all()
            assert managed._C.is_spilled(x) and managed._C.is_spilled(to)
            give(to, x)
            managed._C.spill_all()
            assert not managed._C.is_spilled(x) and not managed._C.is_spilled(to)
            assert torch.equal(to.cpu(), torch.arange(2.0**16))
        dist.destroy_process_group()
    """)


@with_cuda
def test_a_derivative_that_asks_for_cuda_is_the_cpus():
    run("""
        x = torch.randn(8, 9, 10, requires_grad=True)
        y = x.detach().cuda().requires_grad_()
        for t in (x, y):
            (g,) = torch.autograd.grad(
                torch.renorm(t, 2, 1, 0.5).square().sum(), t, create_graph=True
            )
            g.square().sum().backward()
        assert torch.equal(x.grad, y.grad.cpu())
    """)


@with_cuda
def test_streams_and_memory_are_torchs():
    run("""
        x = torch.ones(1 << 20, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
            host = torch.empty(1 << 20).pin_memory()
            host.copy_(y, non_blocking=True)
        x.record_stream(side)
        side.synchronize()
        assert host.sum().item() == 2 << 20
        assert torch.cuda.memory_allocated() == 8 << 20
        del x, y
        assert torch.cuda.memory_allocated() == 0
    """)


@with_cuda
def test_a_device_is_as_large_as_was_said():
    code = "import torch; torch.empty(2 << 30, dtype=torch.uint8, device='cuda:1')"
    assert "CUDA out of memory" in launch("-c", code, devices="4GiB,1GiB", status=1).stderr


@with_cuda
def test_workers_find_virtual_gpus_too(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        "import torch, torch.multiprocessing as mp\n"
        "def work(rank):\n"
        "    assert (torch.ones(2, device=f'cuda:{rank}') + rank).tolist() == [1.0 + rank] * 2\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(work, nprocs=2)\n"
    )
    assert launch(str(script)).stderr == ""


@with_cuda
def test_a_move_of_managed_tensors_initialises_cuda():
    """As torch's own does: the seeds that wait for CUDA are set, and its tensors may leave."""
    run("""
        import managed
        from managed import _C, ManagedTensor

        torch.manual_seed(5)
        x = torch.ones(1 << 16).as_subclass(ManagedTensor).to("cuda:1")
        assert torch.cuda.is_initialized() and torch.cuda.initial_seed() == 5
        assert _C.spill_all() == 1 and _C.is_spilled(x)
        assert torch.equal(x.cpu(), torch.ones(1 << 16))
    """)


@with_cuda
def test_simulated_devices_and_cards_are_no_peers():
    run("""
        import managed
        from managed import _C, ManagedTensor

        managed.simulate(devices=2, memory="64MiB")
        card = torch.ones(1 << 20, device="cuda:1").as_subclass(ManagedTensor)
        xs = [torch.full((1 << 20,), float(i)).as_subclass(ManagedTensor) for i in range(8)]
        xs = [x.to("sim:0") for x in xs]
        with managed.budget("sim:0", "8MiB"), managed.budget("sim:1", "8MiB"):
            for i, x in enumerate(xs):
                assert (x + 1)[3].item() == i + 1
        card = card + 1
        links = managed.stats()["links"]
        assert links["sim:0->cpu"], links
        assert not any("sim" in k and "cuda" in k for k in links), links
    """)


SEEDS = int(os.environ.get("VIRTUAL_GPU_SEEDS", "8"))  # of the next two; `make virtual-gpu-seeds`
SCRIPT = Path(__file__).parent / "seeds.py"
with_links = pytest.mark.parametrize("links", ["", "all"], ids=["over the host", "peers"])


def counts_over_seeds(script, devices, seeds, links):
    """What a script says of so many seeds; it ends at the first seed that has other bits."""
    done = launch(
        str(SCRIPT.parent / script),
        *("0", str(seeds)),
        devices=devices,
        timeout=300 + 60 * SEEDS,
        VIRTUAL_GPU_LINKS=links,
    )
    assert done.stderr == "", done.stderr
    return {kind: int(count) for kind, count in (word.split("=") for word in done.stdout.split())}


@with_cuda
@with_links
def test_training_under_a_budget_does_not_depend_on_what_runs_when(links):
    """Plans, copies that are kept, a full host, other streams: the CPU's bits for every seed."""
    told = counts_over_seeds("seeds.py", "2x320MiB", SEEDS, links)
    assert all(told[kind] > 0 for kind in ("spill", "drop", "spare", "restore", "copy")), told


@with_cuda
@with_links
def test_training_on_several_devices_does_not_depend_on_what_runs_when(links):
    """Data parallel and pipelines, between which bytes leave: the CPU's bits for every seed."""
    told = counts_over_seeds("parallel_seeds.py", "4x320MiB", max(SEEDS // 4, 1), links)
    assert all(count > 0 for count in told.values()), told


@with_cuda
@with_links
def test_a_random_program_of_streams_does_not_depend_on_what_runs_when(links):
    """Ordered as torch asks for and no more. Operands, lent bytes, pointers, gradients cross."""
    told = counts_over_seeds("streams.py", "3x320MiB", SEEDS, links)
    assert all(count > 0 for count in told.values()), told


@with_cuda
@pytest.mark.parametrize("part", [0.5, 0.7])
def test_nobody_waits_for_bytes_while_a_training_repeats(part):
    """With one stream. Blocks that two streams may have used are waited for where room is short."""
    told = run(f"""
        import sys
        sys.path.insert(0, {str(SCRIPT.parent)!r})
        import seeds
        from managed import ManagedModule, ManagedTensor, budget, stats

        start, batch, losses, weights = seeds.plain("AdamW")
        there = batch.as_subclass(ManagedTensor).to("cuda:0")

        def steps(count):
            model = ManagedModule.from_module(copy.deepcopy(start)).to("cuda:0")
            optimizer = seeds.OPTIMIZERS["AdamW"](model.parameters())
            return [seeds.step(model, optimizer, there) for _ in range(count)]

        torch.cuda.reset_peak_memory_stats()
        steps(2)
        needed = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        stats(reset=True)
        with budget("cuda:0", int({part} * needed)):
            found = steps(6)
            moved = stats()
            assert all(torch.equal(a, b.cpu()) for a, b in zip(losses, found))
        assert moved["restore"] > 60 and not seeds.races()
        print(moved["host_waits"])
    """)
    assert told == "0\n"


@with_cuda
def test_the_benchmark_of_cards_repeats_its_bits_in_less_room(tmp_path):
    """Its times are nothing here; what it moves, and what comes out, is what a card does."""
    out = tmp_path / "on_card.json"
    script = ROOT / "benchmarks" / "on_card.py"
    words = ["--only", "inference", "--width", "1024", "--batch", "4", "--fractions", "0.6"]
    launch(str(script), *words, "--out", str(out), devices="1x2GiB")
    ((cell,),) = (report["cells"] for report in json.loads(out.read_text())["reports"])
    lru, learned = (cell["policies"][policy] for policy in ("lru", "learned"))
    assert lru["same_bits"]
    assert learned["same_bits"]
    assert lru["host_waits"] == learned["host_waits"] == 0
    assert learned["plan"]["follows"]
    assert 0 < learned["restore_bytes"] < lru["restore_bytes"]


@with_cuda
@pytest.mark.slow
def test_the_benchmark_of_cards_trains_beside_what_torch_has(tmp_path):
    """Where managed trains, plain tensors have no room, with save_on_cpu() and without."""
    out = tmp_path / "on_card.json"
    script = ROOT / "benchmarks" / "on_card.py"
    words = ["--only", "training", "--models", "tiny", "--fractions", "0.7"]
    launch(str(script), *words, "--out", str(out), devices="1x2GiB")
    (report,) = json.loads(out.read_text())["reports"]
    without, with_budget = (cell["policies"] for cell in report["cells"])
    assert set(without) == {"torch", "save_on_cpu"}
    assert without["torch"]["same_bits"]
    assert all(with_budget[policy]["same_bits"] for policy in ("lru", "learned"))
    assert all("why" in with_budget[way] for way in without)


@with_cuda
def test_the_example_of_two_allocators():
    """The allocator's segments are as large as the example's blocks, so that these are exact."""
    done = launch(str(ROOT / "examples" / "two_allocators.py"), devices="1x1GiB")
    block, number = 16 << 20, r" +([\d,]+) +([\d,]+) +([\d,]+)$"
    plain, without, held, given = (
        (result, *(int(n.replace(",", "")) for n in numbers))
        for result, *numbers in re.findall(r"  +(\w+)" + number, done.stdout, re.M)
    )
    kept, missing = 24 * block, 8 * block
    assert plain == ("OutOfMemoryError", 0, kept, kept)
    assert without[0] == held[0] == given[0] == "fits"
    assert missing <= without[1] <= missing + block
    assert without[2:] == (kept, kept)
    assert held[1:3] == (0, kept)
    assert missing <= kept - held[3] <= missing + block
    assert missing <= given[1] <= missing + block
    assert "same bits: True" in done.stdout
