"""The programs of docs/recipes.md, each in a process of its own.

Those whose libraries `make test` installs are never skipped.
"""

import ast
from importlib.util import find_spec

import pytest
from support import interpreters
from support.fences import blocks
from support.paths import ROOT
from support.slices import slice_of

PAGE = ROOT / "docs/recipes.md"
OF_THE_TEST_EXTRA = {"accelerate", "numpy", "skorch", "torch_geometric", "transformers"}
RECIPES = [body for _, body in blocks(PAGE, "python")]


def libraries(program):
    """What it imports beside torch and managed."""
    nodes = [n for n in ast.walk(ast.parse(program)) if isinstance(n, ast.Import | ast.ImportFrom)]
    named = {n.module if isinstance(n, ast.ImportFrom) else a.name for n in nodes for a in n.names}
    return sorted({n.split(".")[0] for n in named} - {"torch", "managed"})


def test_the_page_has_a_recipe_for_each_library():
    assert {name for program in RECIPES for name in libraries(program)} == OF_THE_TEST_EXTRA | {
        *("diffusers", "gpytorch", "optuna", "peft", "pytorch_lightning", "torchdiffeq")
    }


@pytest.mark.parametrize("program", slice_of(RECIPES, 2), ids=lambda p: "-".join(libraries(p)))
def test_recipe_runs(program, tmp_path):
    for name in libraries(program):
        if name not in OF_THE_TEST_EXTRA and find_spec(name) is None:
            pytest.skip(f"{name} is not installed: make ecosystem")
    env = interpreters.environment(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE=1)
    done = interpreters.run(["-c", program], options=(), env=env, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
