"""NO_MANAGED=1: everything can be imported, and nothing is changed but names that do nothing."""

import ast
from pathlib import Path

from support.paths import PROGRAMS

import managed
from managed import _inert

PROGRAM = PROGRAMS / "inert_package.py"


def test_the_package_is_inert(run_python):
    assert run_python(PROGRAM, NO_MANAGED=1, MANAGED_SIM="4x8MiB").strip() == "done"


def test_zero_means_active(run_python):
    assert run_python("import sys, managed; print('managed._C' in sys.modules)", NO_MANAGED=0)


def test_simulated_devices_are_torchs_own_then(run_python):
    run_python(
        """
        import torch, managed
        managed.simulate(2, "8MiB")
        assert torch.ones(2, device="sim:1").sum().item() == 2
        """,
        NO_MANAGED=1,
    )


def test_the_stand_in_has_what_the_package_asks_for():
    """Every C.name in the package exists in the stand-in, unless only active code reaches it."""
    folder = Path(managed.__file__).parent
    active_only = {
        "_holders_known.py": {"holders_add"},
        "data_parallel.py": {"is_recorded"},
        "holders.py": {
            *("device_name", "give_back", "holders_add", "holders_capsule", "holders_read"),
            "holders_remove",
        },
        "module.py": {"device"},
        "_torch_patches/checkpoint.py": None,
        "_torch_patches/dlpack.py": {"exchange_api"},
        "_torch_patches/functions.py": None,
        "_torch_patches/graphs.py": None,
        "_torch_patches/launch.py": None,
        "_torch_patches/optim.py": None,
        "_torch_patches/reducer.py": None,
        "_modules/named.py": {"number"},
        "_on/modules.py": {"alone"},
        "_on/on.py": None,
        "_views/stats_tables.py": {"residency"},
        "explain.py": {"is_spilled"},
        "hints.py": {"alone", "device"},
        "plans.py": {"load_steps", "save_steps"},
        "_on/cuda.py": None,
        "_modules/placement.py": None,
        "_torch_patches/saving.py": None,
        "_modules/walk.py": None,
        "_modules/wrappers.py": None,
        "_simulated/memory.py": {"capacity"},
    }
    active_only |= dict.fromkeys(
        f"_parallel/{name}.py"
        for name in """homes layers measure parts recompute report schedule shared shells stages
            workers""".split()  # noqa: SIM905
    )
    active_only["_budgets.py"] = {"capacity", "device_name", "host_memory", "set_host_limit"}
    for path in [*folder.glob("*.py"), *folder.glob("_*/*.py")]:
        here = path.relative_to(folder).as_posix()
        skipped = active_only.get(here, set())
        if skipped is None:
            continue
        tree = ast.walk(ast.parse(path.read_text()))
        used = {
            n.attr
            for n in tree
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "C"
        }
        assert used - skipped <= set(vars(_inert)), here
