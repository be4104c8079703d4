"""The wheel: built without isolation, installed where there is torch and nothing else, and used."""

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

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


def needed_by(name, seen=None):
    """Names in site-packages of a distribution and of all that it requires here."""
    seen = set() if seen is None else seen
    seen.add(name)
    distribution = importlib.metadata.distribution(name)
    entries = {f.parts[0] for f in distribution.files if f.parts[0] != ".."}
    for line in distribution.requires or ():
        requirement = Requirement(line)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in seen:
            entries |= needed_by(requirement.name, seen)
    return entries - {"__pycache__"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Objects that `make` compiled are taken up, since the same flags are asked for."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["-qq", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    run(sys.executable, "-m", "pip", "wheel", ROOT, *options, MANAGED_WERROR="1")
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if ".dist-info/" not in n]
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        told = archive.read(metadata).decode()
    package = ROOT / "managed"
    python = {str(p.relative_to(package)) for p in package.rglob("*.py*") if p.suffix != ".pyc"}
    modules = {"_C", "_sim", "_virtual_gpu"}
    if torch.version.cuda:
        modules |= {"_cuda", "libvirtual_gpu"}
    assert {n for n in names if not n.endswith(".so")} == {
        f"managed/{n}" for n in python | {"py.typed"}
    }
    assert {re.match(r"managed/(\w+)\.", n)[1] for n in names if n.endswith(".so")} == modules
    minor = ".".join(torch.__version__.split(".")[:2])
    assert f"Requires-Dist: torch=={minor}.*" in told
    assert "License-Expression: MIT" in told


@pytest.mark.slow
def test_wheel_works_where_there_is_only_torch(wheel, tmp_path):
    """A path file lends the torch of this environment to an empty one."""
    place = tmp_path / "empty"
    venv.create(place, with_pip=False)
    python = place / "bin/python"
    paths = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").split()
    target = Path(paths[0])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    lent = tmp_path / "lent"
    lent.mkdir()
    site = Path(torch.__file__).parents[1]
    for entry in needed_by("torch"):
        (lent / entry).symlink_to(site / entry)
    (target / "lent.pth").write_text(f"{lent}\n")
    # torch warns when there is no numpy, which it does not require.
    quiet = ["-W", "error", "-W", "ignore:Failed to initialize NumPy:UserWarning"]
    printed = run(python, *quiet, "-I", "-c", SMOKE)
    assert Path(printed.strip()).is_relative_to(place)
