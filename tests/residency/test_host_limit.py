"""How much of the host is this process's: of the machine, of a container, of a launcher."""

import shutil
import subprocess

import pytest
from support.paths import ROOT

SOURCES = ROOT / "csrc"
GIB = 1 << 30
MAIN = """
#include "torch/residency/host_limit.h"
#include <cstdio>
int main(int, char** arguments) {
  std::printf("%lld", static_cast<long long>(managed::share_of_host(arguments[1])));
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host_limit")
    (folder / "main.cpp").write_text(MAIN)
    command = [
        shutil.which("g++"),
        "-std=c++20",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-iquote{SOURCES}",
    ]
    command += [
        folder / "main.cpp",
        SOURCES / "torch/residency/host_limit.cpp",
        "-o",
        folder / "share",
    ]
    subprocess.run(command, check=True)
    return folder / "share"


@pytest.fixture
def share(program, tmp_path):
    """Bytes of this process, where the files of `tree` describe its control groups."""

    def share(tree, **environment):
        for path, text in tree.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        told = subprocess.run(
            [program, tmp_path], env=environment, capture_output=True, check=True, text=True
        )
        return int(told.stdout)

    return share


def test_without_groups_it_is_the_machines(share):
    machine = share({})
    assert machine > GIB // 4
    assert share({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}) == machine
    unlimited = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert share(unlimited) == machine


def test_the_least_limit_of_the_groups_above(share):
    tree = {
        "proc/self/cgroup": "0::/user/job\n",
        "sys/fs/cgroup/user/job/memory.max": "max\n",
        "sys/fs/cgroup/user/memory.max": "50000000\n",
        "sys/fs/cgroup/memory.max": "60000000\n",
    }
    assert share(tree) == 50000000
    assert share({"sys/fs/cgroup/user/job/memory.max": "40000000\n"}) == 40000000


def test_version_1_and_a_path_of_the_host(share):
    tree = {
        "proc/self/cgroup": "9:name=systemd:/x\n4:cpu,memory:/docker/0a1b\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "70000000\n",
    }
    assert share(tree) == 70000000


def test_ranks_of_a_launcher_share_it(share):
    tree = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "80000000\n"}
    assert share(tree, LOCAL_WORLD_SIZE="4") == 20000000
    assert share(tree, LOCAL_WORLD_SIZE="") == 80000000


def test_the_default_limit_is_four_fifths_of_the_share(run_python):
    ask = "from managed import _C; print(_C.host_memory()['limit'])"
    alone, shared = (int(run_python(ask, LOCAL_WORLD_SIZE=n).strip()) for n in (1, 8))
    assert shared == pytest.approx(alone / 8, rel=1e-6)
