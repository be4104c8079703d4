"""The wheel and the sdist: built without isolation, installed where there is torch alone, and used.
What an import says where torch is not the one built for.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import rattler_build
import torch
from support.paths import ROOT

import managed
from managed import _built

sys.path.insert(0, str(ROOT / "tools"))
import release
from installed import needed_by
from ninja_build import ALONE, HOOKS

SMOKE = """
import torch
import managed
from managed import ManagedModule, ManagedTensor, device_manager

managed.simulate(devices=2, memory="64MiB")
x = torch.ones(8, 4).as_subclass(ManagedTensor).cuda(0)
net = ManagedModule.from_module(torch.nn.Linear(4, 3)).cuda(1)
y = net(x)
y.sum().backward()
assert isinstance(y, ManagedTensor) and str(net.weight.grad.device) == "sim:1"
assert torch.equal(net.weight.grad.cpu(), torch.full((3, 4), 8.0))
assert str(device_manager.find_device(2**30)) == "cpu"
print(managed.__file__)
"""


def run(*command, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=kept | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Objects that `make` compiled are taken up, since the same flags are asked for."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["-qq", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder]
    wanted = {"MANAGED_WERROR": "1", "MANAGED_RELEASE": "1"}
    run(sys.executable, "-m", "pip", "wheel", ROOT, *options, **wanted)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if ".dist-info/" not in n]
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        told = archive.read(metadata).decode()
    package = ROOT / "managed"
    files = [*package.rglob("*.py*"), *package.rglob("*.h")]
    python = {str(p.relative_to(package)) for p in files if p.suffix != ".pyc"}
    modules = {"_C", "_sim"}
    if torch.version.cuda:
        modules |= {"_cuda", "_virtual_gpu", "libvirtual_gpu"}
    record = f"_C{EXTENSION_SUFFIXES[0]}"[: -len(".so")] + ".json"
    assert {n for n in names if not n.endswith(".so")} == {
        f"managed/{n}" for n in python | {"py.typed", record}
    }
    assert {re.match(r"managed/(\w+)\.", n)[1] for n in names if n.endswith(".so")} == modules
    minor = ".".join(torch.__version__.split(".")[:2])
    assert f"Requires-Dist: torch=={minor}.*" in told
    assert "License-Expression: MIT" in told
    cuda = f"cu{torch.version.cuda.replace('.', '')}" if torch.version.cuda else "cpu"
    assert wheel.name.split("-")[1] == f"0.1.0+pt{minor.replace('.', '')}{cuda}"
    assert wheel.stat().st_size < 8 * 2**20, "debug information is in"
    assert set(release.check(wheel)) == {"GLIBC", "GLIBCXX", "CXXABI"}


@pytest.mark.slow
def test_wheel_works_where_there_is_only_torch(wheel, tmp_path):
    """A path file lends the torch of this environment to an empty one; pip finds there what the
    wheel asks for, and downloads nothing. `make packages` brings torch from an index."""
    place = tmp_path / "empty"
    venv.create(place, with_pip=False)
    python = place / "bin/python"
    paths = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").split()
    target = Path(paths[0])
    pip = [sys.executable, "-m", "pip", "--isolated", "--python", python]
    nowhere = {"PIP_CONFIG_FILE": os.devnull}  # a configuration may name folders with packages
    install = [*pip, "install", "-qq", "--no-index", wheel]
    refused = subprocess.run(
        install, capture_output=True, text=True, check=False, env=os.environ | nowhere
    )
    assert "No matching distribution found for torch==" in refused.stderr
    lent = tmp_path / "lent"
    lent.mkdir()
    site = Path(torch.__file__).parents[1]
    entries = {f.parts[0] for needed in needed_by("torch") for f in needed.files}
    for entry in entries - {"..", "__pycache__"}:
        (lent / entry).symlink_to(site / entry)
    (target / "lent.pth").write_text(f"{lent}\n")
    run(*install, **nowhere)
    run(*pip, "check")
    # torch warns when there is no numpy, which it does not require.
    quiet = ["-W", "error", "-W", "ignore:Failed to initialize NumPy:UserWarning"]
    printed = run(python, *quiet, "-I", "-c", SMOKE)
    assert Path(printed.strip()).is_relative_to(place)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/quickstart.md").read_text(), re.S)
    assert len(blocks) == 5
    assert "operands copied" in run(python, *quiet, "-I", "-c", "\n".join(blocks))

    # The same installation, with the record of another build.
    (record,) = target.glob("managed/_C.*.json")
    told = json.loads(record.read_text()) | {"torch": "2.4.1", "cuda": "12.1"}
    record.write_text(json.dumps(told))
    failed = subprocess.run(
        [python, "-I", "-c", "import managed"], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1
    assert "ImportError: managed was built for torch 2.4 with CUDA 12.1, and" in failed.stderr
    assert "undefined symbol" not in failed.stderr
    doctor = run(place / "bin/managed", "doctor")
    assert "why: managed was built for torch 2.4 with CUDA 12.1, and" in doctor
    assert "cure: Or the torch that it was built for: pip install 'torch==2.4.*'" in doctor


NAMES = re.compile(rb"lie|disturb_steps|fetch_ahead|shake_replicas|(?:begin|end)_uses|clean_first")


@pytest.mark.slow
def test_the_wheel_has_no_test_hooks(wheel):
    """It holds no name of one; the modules in the tree hold them."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            n for n in archive.namelist() if n.startswith("managed/_C.") and n.endswith(".so")
        )
        released = archive.read(name)
    here = Path(managed._C.__file__).read_bytes()
    whole = rb"\0(?:mgd_step_|mgd_replica_|mgd_policy_)?(?:" + NAMES.pattern + rb")(?=[\0(])"
    found = {m[0].strip(b"\0") for m in re.finditer(whole, here)}
    assert len(found) >= 7
    assert not re.search(whole, released)


def compiled(source, value, folder):
    """The functions that the file defines, with the macro set so."""
    out = folder / f"{source.stem}{value}.o"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", f"-D{HOOKS}={value}"]
    run("gcc", *flags, f"-iquote{ROOT / 'csrc'}", "-c", source, "-o", out)
    return set(re.findall(r"^\w+ T (\w+)$", run("nm", out), re.M))


def test_the_core_compiles_without_test_hooks(tmp_path):
    header = ROOT / "csrc/core/testing.h"
    declared = set(re.findall(r"^\w+ (mgd_\w+)\(", header.read_text(), re.M))
    named = [p for p in (ROOT / "csrc").rglob("*.[ch]*") if HOOKS in p.read_text()]
    assert {p.name for p in named if p.suffix == ".cpp"} <= ALONE
    assert [p for p in named if p.suffix == ".h"] == [header]
    left_out = set()
    for source in (p for p in named if p.is_relative_to(ROOT / "csrc/core") and p.suffix == ".c"):
        default, without = compiled(source, 1, tmp_path), compiled(source, 0, tmp_path)
        assert without < default
        left_out |= default - without
    assert left_out == declared


def test_packages_are_made_without_test_hooks():
    wheel = re.search(r"^wheel:.*\n\t(.*)", (ROOT / "Makefile").read_text(), re.M)[1]
    assert wheel.startswith("MANAGED_RELEASE=1 ")
    assert 'MANAGED_RELEASE="1"' in (ROOT / "tools/release.py").read_text()
    assert "MANAGED_RELEASE: conda" in (ROOT / "conda/recipe.yaml").read_text()


@pytest.mark.slow
def test_sdist_holds_what_the_compiler_read(tmp_path, monkeypatch):
    """Each file of the tree that a compilation here has read, and what setup.py needs."""
    source = release.sdist(sys.executable, tmp_path)
    with tarfile.open(source) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    sys.path.insert(0, str(ROOT / "tools"))
    from ninja_build import Options, find_ninja

    folder = ROOT / "build" / Options().tag
    told = run(find_ninja(), "-C", folder, "-t", "deps").splitlines()
    # Names are relative to the build's folder where ccache knew a file from another copy.
    paths = {(folder / line.strip()).resolve() for line in told if line.startswith("    ")}
    tree = {str(p.relative_to(ROOT)) for p in paths if p.exists() and p.is_relative_to(ROOT)}
    read = {name for name in tree if not name.startswith((".", "build/"))}
    assert len(read) > 100
    python = {str(p.relative_to(ROOT)) for p in (ROOT / "managed").rglob("*.py")}
    assert read | python <= names
    assert {"setup.py", "pyproject.toml", "tools/ninja_build.py", "LICENSE"} <= names
    assert not any(n.startswith(("build/", "tests/", ".")) or n.endswith(".so") for n in names)
    monkeypatch.setenv("MANAGED_ONLY", "none")  # pip's way to a wheel, but for the compiler
    made = release.build(sys.executable, source, tmp_path)
    assert re.match(r"managed-0\.1\.0\+pt\d+(cpu|cu\d+)-cp3", made.name)


def built(**changed):
    cuda = torch.version.cuda
    now = {"managed": "0.1.0", "torch": torch.__version__, "cuda": cuda, "cxx11_abi": True}
    return now | changed


@pytest.mark.parametrize(
    ("changed", "here", "words"),
    [
        ({"torch": "2.4.1"}, {}, r"pip install 'torch==2\.4\.\*'"),
        ({"cxx11_abi": False}, {}, r"of another C\+\+ ABI"),
        ({"cuda": None}, {"cuda": "13.0"}, r"without CUDA, and this is .* with CUDA 13\.0"),
        ({"cuda": "12.8"}, {"cuda": "13.0"}, r"'managed==0\.1\.0\+pt\d+cu130'"),
    ],
)
def test_import_refuses_what_was_built_for_another_torch(monkeypatch, changed, here, words):
    monkeypatch.setattr(_built, "record", lambda: built(**changed))
    for name, value in here.items():
        monkeypatch.setattr(f"torch.version.{name}", value)
    with pytest.raises(ImportError, match=words) as caught:
        _built.check()
    assert "pip install --force-reinstall --no-deps" in str(caught.value)


def test_import_takes_what_works(monkeypatch):
    """Another patch release, a torch that has lost CUDA, one with a later CUDA of its major."""
    patch = f"{_built.minor(torch.__version__)}.99+other"
    for record, cuda in (
        (built(torch=patch), torch.version.cuda),
        (built(cuda="13.0"), None),
        (built(cuda="13.0"), "13.2"),
        ({}, "13.0"),
    ):
        monkeypatch.setattr(_built, "record", lambda told=record: told)
        monkeypatch.setattr("torch.version.cuda", cuda)
        _built.check()


def test_import_says_that_nothing_is_compiled_for_this_python(monkeypatch, tmp_path):
    monkeypatch.setattr(_built, "_HERE", tmp_path)
    assert _built.record() == {}
    with pytest.raises(ImportError, match="a source tree that was not built"):
        _built.check()
    (tmp_path / "_C.cpython-39-x86_64-linux-gnu.so").touch()
    with pytest.raises(ImportError, match="compiled for cpython-39-x86_64-linux-gnu, and this"):
        _built.check()


@pytest.mark.parametrize("text", ["", "{", "null", "[1]", "{}", '{"torch": "2.13.0"}'])
def test_a_damaged_record_is_none(monkeypatch, tmp_path, text):
    monkeypatch.setattr(_built, "_HERE", tmp_path)
    (tmp_path / f"_C{EXTENSION_SUFFIXES[0]}").with_suffix(".json").write_text(text)
    assert _built.record() == {}


def test_the_loader_s_error_is_explained():
    error = _built.explained(ImportError("undefined symbol: x", name="managed._C"))
    assert "most likely built for another torch" in str(error)
    assert "--no-build-isolation ." in str(error)
    old = ImportError("/lib/libc.so.6: version `GLIBC_2.34' not found (required by _C.so)")
    told = str(_built.explained(old))
    assert "built on a newer system: GLIBC_2.34 is in a library that is older here" in told
    assert "another torch" not in told


def test_a_release_agrees_on_its_version(tmp_path):
    assert release.version() == managed.__version__
    assert release.problems(ROOT, rehearse=True) == []
    for name in ("pyproject.toml", "managed/__init__.py", "CITATION.cff", "conda/recipe.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.0.9 (2026-01-31)\n")
    (tmp_path / "CITATION.cff").write_text("version: 0.0.8\n")
    assert release.problems(tmp_path, rehearse=True) == [
        "CHANGELOG.md begins with 0.0.9, not 0.1.0",
        "CITATION.cff has version 0.0.8, not 0.1.0",
    ]


def test_the_conda_recipe_is_rendered_for_each_python_torch_and_cuda():
    """What a channel has to have for it; `make conda` builds it and runs its tests."""
    recipe = rattler_build.Stage0Recipe.from_file(ROOT / "conda/recipe.yaml")
    variants = rattler_build.VariantConfig.from_file(ROOT / "conda/variants.yaml")
    rows = re.findall(r"^(python|torch) = (.+)$", (ROOT / "tools/release.toml").read_text(), re.M)
    matrix = {name: json.loads(values) for name, values in rows}
    assert variants["python"] == matrix["python"]
    assert variants["pytorch"] == matrix["torch"]
    found = {}
    for row in recipe.render(variants):
        told, build = row.variant, row.recipe.build.string
        cuda = told["cuda_compiler_version"].replace(".", "")
        name = "cpu" if cuda == "None" else f"cuda{cuda}"
        numbers = (told[key].replace(".", "") for key in ("pytorch", "python"))
        assert re.fullmatch("{}_pt{}_py{}_h[0-9a-f]{{7}}_0".format(name, *numbers), build)
        found[told["python"], told["pytorch"], name] = row.recipe.requirements.to_dict()
    assert len(found) == len(matrix["python"]) * len(matrix["torch"]) * 2
    tools = ["python", "pip", "setuptools >=77", "ninja"]
    assert found["3.11", "2.14", "cpu"]["host"] == [*tools, "pytorch 2.14.* cpu*"]
    asked = found["3.12", "2.15", "cuda130"]
    assert asked["run"] == ["python", "pytorch 2.15.* cuda130*"]
    headers = ["cuda-version 13.0.*", "cuda-cudart-dev", "cuda-crt-dev_linux-64"]
    assert asked["host"] == [*tools, "pytorch 2.15.* cuda130*", *headers]
    assert asked["build"] == ["gcc_linux-64", "gxx_linux-64", "sysroot_linux-64 2.28.*"]


@pytest.mark.parametrize(("platform", "count"), [("linux-64", 50), ("linux-aarch64", 0)])
def test_the_conda_recipe_is_for_the_platforms_that_it_can_serve(platform, count, tmp_path):
    """Only this function of the library looks at what a recipe skips."""
    code = f"""
import rattler_build
rattler_build.build_recipes(
    [{str(ROOT / "conda/recipe.yaml")!r}], render_only=True, target_platform={platform!r},
    variant_config=[{str(ROOT / "conda/variants.yaml")!r}], output_dir={str(tmp_path)!r},
)"""
    assert len(json.loads(run(sys.executable, "-W", "ignore", "-c", code))) == count
