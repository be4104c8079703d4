"""Runs PyTorch's own test files, as they are and with `import managed` before: which tests differ?

    python tools/torch_tests.py FOLDER [test_torch.py test_nn.py ...] [--plugin managed] [-n 2]

FOLDER is the folder `test` of PyTorch's sources, of about the version that is installed; Debian's
source package `pytorch` has it. The tests need the packages expecttest and hypothesis. A test that
differs is run again alone, both ways, so that one that depends on chance or on the machine's load
is not reported. Exit status 1: some differ.

--plugin names the module that is imported first; another one than `managed` can change more than
the import does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

FILES = [
    *("test_torch.py", "test_nn.py", "test_autograd.py", "test_optim.py", "test_modules.py"),
    *("test_view_ops.py", "test_indexing.py", "test_stateless.py", "test_foreach.py"),
    *("test_serialization.py", "test_subclass.py", "test_overrides.py", "test_fake_tensor.py"),
    *("test_dlpack.py", "test_utils.py", "test_type_promotion.py", "test_tensor_creation_ops.py"),
    *("test_autocast.py", "nn/test_lazy_modules.py", "nn/test_parametrization.py"),
    *("nn/test_module_hooks.py", "nn/test_load_state_dict.py"),
    *("functorch/test_eager_transforms.py", "autograd/test_functional.py"),
]


def outcome(case: ElementTree.Element) -> str:
    said = {child.tag for child in case}
    return "failed" if said & {"failure", "error"} else "skipped" if "skipped" in said else "passed"


MOST = 40  # of a file, that are named
Test = tuple[str, str]  # its class and its name


def outcomes(folder: Path, what: list[str], plugin: str | None, workers: int) -> dict[Test, str]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        # Their conftest.py is written for an older pytest.
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "--noconftest"]
        command += ["-c", os.devnull, f"--junitxml={report}", f"--rootdir={folder}"]
        command += ["-p", plugin] if plugin else []
        command += ["-n", str(workers)] if workers else []
        done = subprocess.run([*command, *what], cwd=folder, capture_output=True, text=True)
        if not report.exists():
            said = (done.stdout + done.stderr)[-3000:]
            raise SystemExit(f"pytest made no report of {what}:\n{said}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    return {(case.get("classname", ""), case.get("name", "")): outcome(case) for case in cases}


def differing(plain: dict, changed: dict) -> list[Test]:
    tests = plain.keys() | changed.keys()
    return sorted(test for test in tests if plain.get(test) != changed.get(test))


def compare(folder: Path, file: str, plugin: str, workers: int) -> int:
    plain, changed = (outcomes(folder, [file], p, workers) for p in (None, plugin))
    suspects = differing(plain, changed)
    if 0 < len(suspects) <= 50:
        names = [f"{file}::{where.rsplit('.', 1)[-1]}::{name}" for where, name in suspects if where]
        again = [outcomes(folder, names, p, 0) for p in (None, plugin)]
        plain, changed = {**plain, **again[0]}, {**changed, **again[1]}
        suspects = differing(plain, changed)
    passed = list(plain.values()).count("passed")
    print(f"{file}: {len(plain)} tests, {passed} pass as they are, {len(suspects)} differ")
    for test in suspects[:MOST]:
        print(f"  {'.'.join(test)}: {plain.get(test)}, with {plugin} {changed.get(test)}")
    sys.stdout.flush()
    return len(suspects)


def main() -> int:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--plugin", default="managed")
    parser.add_argument("-n", "--workers", type=int, default=2)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    how = (arguments.plugin, arguments.workers)
    return 1 if sum(compare(folder, file, *how) for file in arguments.files) else 0


if __name__ == "__main__":
    sys.exit(main())
