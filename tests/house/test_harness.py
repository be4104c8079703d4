"""The checks that hold for every test find what they are for: leaks, and what programs say."""

import gc
import textwrap

import pytest
import torch
from support import interpreters
from support.devices import D0
from support.garbage import collect_and_freeze
from support.paths import TESTS, package_folder
from support.pressure import leaves_nothing


class Ring:
    """Keeps a tensor until the garbage collector finds it."""

    def __init__(self):
        self.me, self.kept = self, torch.zeros(8192, device=D0)


def test_a_leak_inside_of_a_block_is_found():
    kept = []
    with pytest.raises(AssertionError, match="allocated: "), leaves_nothing(patience=0.01):
        kept.append(torch.zeros(8192, device=D0))


def test_garbage_is_no_leak():
    with leaves_nothing():
        Ring()


def test_what_was_frozen_while_it_lived_is_no_leak():
    with leaves_nothing():
        ring = Ring()
        collect_and_freeze()
        del ring
        gc.collect()


def outcome(tmp_path, tests):
    """What pytest says of a file of tests under the conftest of this folder."""
    (tmp_path / "test_planted.py").write_text(textwrap.dedent(tests))
    options = ["-p", "conftest", "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path)]
    done = interpreters.run(
        ["-m", "pytest", *options, "test_planted.py"],
        env=interpreters.environment(PYTHONPATH=f"{package_folder()}:{TESTS}"),
        cwd=tmp_path,
    )
    return done.returncode, done.stdout


@pytest.mark.program
@pytest.mark.only_simulated("the devices of a file are counted on simulated ones")
def test_a_file_that_leaves_bytes_on_a_device_fails(tmp_path):
    """What was frozen and is garbage by the end of the file is no leak."""
    status, said = outcome(
        tmp_path,
        """
        import torch

        kept = []

        def test_makes_a_ring():
            kept.append(torch.zeros(8192, device="sim:1"))
            kept.append(kept)

        def test_drops_the_ring():
            global kept
            kept = []

        def test_keeps_a_tensor():
            kept.append(torch.zeros(8192, device="sim:2"))
        """,
    )
    assert status == 1
    assert "3 passed, 1 error" in said
    assert "bytes left on the devices: [0, 0, 32768, 0]" in said


def test_a_program_that_warns_fails(run_python):
    with pytest.raises(AssertionError, match="UserWarning"):
        run_python("import warnings; warnings.warn('said')")
    with pytest.raises(AssertionError, match="said"):
        run_python("import sys; sys.stderr.write('said')")


def test_a_program_begins_as_an_interpreter_does(run_python, tmp_path):
    """Names, arguments, folder, environment and input; forked, and in an own interpreter."""
    program = """
    import os, sys
    print(sorted(n for n in globals() if n[:2] != "__"), __name__, sys.argv, os.getcwd())
    print(os.environ.get("MANAGED_SEEN"), os.environ.get("MANAGED_SIM"), sys.stdin.read())
    print("managed" in sys.modules, sys.path[0], sys.flags.interactive, sys.warnoptions)
    """
    said = [run_python(program, 1, "b", MANAGED_SEEN=3, input=[4], own=own) for own in (0, 1)]
    assert said[0] == said[1]
    assert said[0].splitlines()[1] == "3 None [4]"


@pytest.mark.parametrize("own", [False, True])
def test_a_program_ends_as_an_interpreter_does(run_python, own):
    """Exit functions, an exit status, an exception, and what is written without a flush."""
    program = """
    import atexit, sys
    atexit.register(lambda: print("left"))
    print("begun")
    raise SystemExit(int(sys.argv[1]))
    """
    assert run_python(program, 7, status=7, own=own) == "begun\nleft\n"
    text = run_python("raise ValueError('wrong')", status=1, stderr="ValueError: wrong", own=own)
    assert text.count("Traceback") == 1
    run_python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", status=-9, own=own)
