"""`managed run`: unchanged scripts, modules and notebooks, each in an interpreter of its own."""

import json
import os

import pytest
from support import interpreters
from support.paths import TESTS, package_folder

PLAIN = TESTS / "plain"
pytestmark = pytest.mark.only_simulated("`managed run` is shown on simulated devices")


def start(*words, cwd=None, input="", own=False, **more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MANAGED_")}
    path = os.pathsep.join(filter(None, [str(package_folder()), environment.get("PYTHONPATH", "")]))
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path, "NO_COLOR": "1", **more}
    return interpreters.run(
        words, options=(), env=environment, cwd=cwd, input=input, timeout=300, own=own
    )


def managed_run(*words, **more):
    return start("-m", "managed", "run", *words, **more)


# ---- plain scripts have the numbers of the wrapped ones

# Each plain script once more, with its one line wrapped by hand.
WRAPPED = f"""
import sys, types
sys.path.insert(0, {str(PLAIN)!r})
sys.argv = ["wrapped", "20"]
import managed
from managed import ManagedModule
managed.simulate(4, "64MiB")
import gpt2, models, pde
import many_models, pde_fault
pde.main(pde_fault.solve)
models.main(many_models.place)
cuda = types.SimpleNamespace(is_available=lambda: True)
gpt2.torch = types.SimpleNamespace(**vars(gpt2.torch) | dict(cuda=cuda, device=lambda kind: kind))
where = lambda model, kind: ManagedModule.from_module(model).cuda()
gpt2.TensorDataset = lambda t, kind=gpt2.TensorDataset: kind(managed.ManagedTensor(t))
gpt2.main(where)
"""


def test_the_tutorial_of_data_parallel_has_the_plain_losses():
    program = TESTS / "programs" / "data_parallel_tutorial.py"
    plain, ours = start(program), managed_run("--devices", "4x512MiB", program)
    assert plain.returncode == 0, plain.stderr
    assert ours.returncode == 0, ours.stderr
    told = [
        [line for line in run.stdout.splitlines() if line.startswith("loss")]
        for run in (plain, ours)
    ]
    assert len(told[0]) == 4
    for line, other in zip(*told, strict=True):
        assert float(line.split()[1]) == pytest.approx(float(other.split()[1]), abs=2e-6)
        assert line.split()[2:] == other.split()[2:]
    assert "devices 4" in ours.stdout
    sizes = [line for line in ours.stdout.splitlines() if line.startswith("in model")]
    assert sorted(sizes[:4]) == ["in model 6 5", *["in model 8 5"] * 3]


@pytest.mark.slow
def test_plain_scripts_have_the_numbers_of_wrapped_ones():
    wrapped = start("-c", WRAPPED)
    assert wrapped.returncode == 0, wrapped.stderr
    runs = [managed_run("--devices", "4x64MiB", PLAIN / f"{name}.py", "20")
            for name in ("pde", "models", "gpt2")]  # fmt: skip
    for plain, line in zip(runs, wrapped.stdout.splitlines(), strict=True):
        assert plain.returncode == 0, plain.stderr
        assert plain.stdout.strip() == line
    assert runs[0].stdout.split()[:4] == ["sim:0", "sim:1", "sim:2", "sim:3"]


@pytest.mark.conformance
def test_a_hundred_plain_models_have_the_numbers_of_the_host():
    script = PLAIN / "models.py"
    inside, plain = managed_run("--devices", "4x64MiB", script, "100"), start(script, "100")
    assert inside.returncode == 0, inside.stderr
    *devices, told = inside.stdout.split()
    assert devices == ["sim:0", "sim:1", "sim:2", "sim:3"]
    assert plain.stdout.split() == ["cpu", told]  # steps and losses of all, to the last bit


LIBRARIES = {
    "trainer": "transformers",
    "accelerate": "accelerate",
    "skorch": "skorch",
    "geometric": "torch_geometric",
    "generate": "transformers",
    # Of an environment of their own: `make ecosystem`.
    "neuralop": "neuralop",
    "lightning": "pytorch_lightning",
    "gpytorch": "gpytorch",
    "botorch": "botorch",
    "torchdiffeq": "torchdiffeq",
    "pyro": "pyro",
    "torchmetrics": "torchmetrics",
    "tensorly": "tensorly",
}


@pytest.mark.slow
def test_libraries_that_choose_devices_have_the_numbers_of_the_host():
    import importlib.util

    there = [n for n, package in LIBRARIES.items() if importlib.util.find_spec(package)]
    if not there:
        pytest.skip("none of the libraries is installed")

    def lines(done):
        assert done.returncode == 0, done.stderr
        return [s for s in done.stdout.splitlines() if s.startswith("library")]

    inside = lines(managed_run("--devices", "4x64MiB", PLAIN / "libraries.py", *there))
    plain = lines(start(PLAIN / "libraries.py", *there))
    assert [s.split()[1] for s in plain] == there
    assert inside == [s.replace(" cpu", " sim") for s in plain]


# ---- how programs are run

SCRIPT = """
import multiprocessing, sys

def work(queue):
    import torch
    queue.put((__name__, str(torch.ones(2, device="cuda").device)))

if __name__ == "__main__":
    import torch
    print(sys.argv, sys.path[0], __file__, __spec__)
    print(torch.cuda.device_count(), torch.ones(2, device="cuda:1").device)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=work, args=(queue,))
    worker.start()
    print(*queue.get())
    worker.join()
    sys.exit(3)
"""


def test_a_script_is_the_main_program(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = managed_run("--devices", "2x64MiB", script, "--help", "-m", "--", "x y")
    assert done.returncode == 3, done.stderr
    assert done.stderr == ""
    first, second, third = done.stdout.splitlines()
    assert first == f"{[str(script), '--help', '-m', '--', 'x y']} {tmp_path} {script} None"
    assert second == "2 sim:1"
    assert third == "__mp_main__ sim:0"


def test_tracebacks_are_the_programs_own(tmp_path):
    (tmp_path / "wrong.py").write_text("import torch\nraise KeyError(torch.cuda.device_count())\n")
    done = managed_run("--devices", "3x64MiB", "wrong.py", cwd=tmp_path)
    assert done.returncode == 1
    told = done.stderr.splitlines()
    assert told[:2] == ["Traceback (most recent call last):",
                        f'  File "{tmp_path}/wrong.py", line 2, in <module>']  # fmt: skip
    assert told[-1] == "KeyError: 3"
    assert "managed" not in done.stderr.replace(str(tmp_path), "")


def test_modules_and_code(tmp_path):
    (tmp_path / "part.py").write_text(
        "import sys, torch\nprint(sys.argv[1:], __spec__.name, torch.ones(1).cuda().device)\n"
    )
    done = managed_run("--devices", "1x64MiB", "-m", "part", "-m", "--devices", cwd=tmp_path)
    assert done.stdout == "['-m', '--devices'] part sim:0\n", done.stderr
    done = managed_run(
        "-c", "import sys; print(sys.argv, 'torch' in sys.modules)", "--budget", own=True
    )
    assert done.stdout == "['-c', '--budget'] False\n", done.stderr
    done = managed_run("-", "--lr", input="import sys; print(sys.argv, __name__)")
    assert done.stdout == "['-', '--lr'] __main__\n", done.stderr


def notebook(path, *sources):
    cells = [{"cell_type": "markdown", "source": ["# words"]}]
    cells += [{"cell_type": "code", "source": s.splitlines(keepends=True)} for s in sources]
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_a_notebook(tmp_path):
    pytest.importorskip("IPython")
    cells = ("import sys, torch\nx = torch.ones(2, device='cuda')", "print(x.device, sys.argv[1:])")
    told = notebook(tmp_path / "n.ipynb", *cells, "%timeit -n1 -r1 x + 1")
    done = managed_run("--devices", "1x64MiB", told, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sim:0 ['--help']\n")
    assert "1 run, 1 loop each" in done.stdout
    done = managed_run(notebook(tmp_path / "wrong.ipynb", "1 / 0", "print('never')"))
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout + done.stderr
    assert "never" not in done.stdout
    (tmp_path / "no.ipynb").write_text("{}")
    done = managed_run(tmp_path / "no.ipynb")
    assert done.returncode == 1
    assert "is no notebook" in done.stderr


LOOK = """
import os, torch, managed
x = torch.ones(2**18, device="cuda")
free, total = torch.cuda.mem_get_info(x.device)
print(torch.cuda.get_device_name(), total, managed._C.capacity("sim:0"), float(x[5] + x[6]))
print(managed._C.torture(0, 0, 1, True)[0])
"""


def test_options(tmp_path):
    done = managed_run("--devices", "2x64MiB", "--budget", "50%", "--torture", "-c", LOOK)
    assert done.stdout == f"simulated device 0 {64 << 20} {32 << 20} 2.0\n1\n", done.stderr
    timeline = tmp_path / "t.json"
    done = managed_run("--preset", "h100-sxm", "--no-values", "--profile", timeline, "-c", LOOK)
    assert done.stdout.startswith(f"H100 SXM 0 {80 << 30} {80 << 30} "), done.stderr
    assert "add" in timeline.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "there is no program to run"),
        (["nothing.py"], "there is no file nothing.py\n"),
        (["nothing"], "there is no file nothing; a module is run by -m nothing"),
        (["--devices", "1x1GiB", "--budget", "2GiB", "-m", "this"], "sim:0 has 1073741824 bytes"),
        (["-m"], "-m takes something to run"),
        (["--devices", "4y8", "x", "-m", "this"], "there is no file x"),
        (["--devices", "99x8GiB", "-m", "this"], "1 to 16 devices can be simulated, not 99"),
        (["--preset", "gameboy", "-m", "this"], "there is no preset 'gameboy'"),
        (["--budget", "half", "-m", "this"], "'half' is no size"),
        (["--profile", "/no/such/place", "-m", "this"], "there is no folder /no/such"),
    ],
)
def test_what_makes_no_sense_is_said_before_the_program_starts(words, told, capsys, monkeypatch):
    from managed.cli import main, run

    monkeypatch.setattr(run, "start", lambda *_: pytest.fail("it has started"))
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert told in said.err
    assert said.out == ""
