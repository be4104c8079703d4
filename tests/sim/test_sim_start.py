"""managed.simulate() and MANAGED_SIM: what is refused without a trace; exit and fork."""

import concurrent.futures

import pytest
from support.paths import PROGRAMS

from managed import sim
from managed._simulated.spec import plan_devices

UNCHANGED = """
    assert torch._C._get_privateuse1_backend_name() == "privateuseone" and not hasattr(torch, "sim")
    managed.simulate(2, "1MiB")
    assert torch.sim.device_count() == 2
    print(torch.ones(3, device="sim:1").sum().item())
"""


def program(*parts):
    import textwrap

    return "\n".join(textwrap.dedent(part) for part in ("import torch, managed", *parts))


def test_bad_values_raise_and_change_nothing(run_python):
    cases = """
        values = [
            dict(devices=0), dict(devices=17), dict(devices=-1), dict(preset="a101"),
            dict(memory=-5), dict(memory=0), dict(memory="0"), dict(memory=2**63), dict(memory=""),
            dict(memory="12 parsecs"), dict(memory="-3MiB"), dict(memory=["1MiB"]), dict(memory=[]),
            dict(devices=2, memory=["1MiB", "x"]),
        ]
        types = [dict(devices="4"), dict(devices=True), dict(devices=2.0), dict(memory=1.5e6)]
        for kind, wrong in ((ValueError, values), (TypeError, types)):
            for arguments in wrong:
                try:
                    managed.simulate(**arguments)
                except kind as error:
                    assert str(error).startswith("managed: "), error
                else:
                    raise AssertionError(arguments)
    """
    assert run_python(program(cases, UNCHANGED)) == "3.0\n"


def test_the_second_time_is_an_error_that_changes_nothing(run_python):
    code = """
        managed.simulate(devices=3, memory=[1000, "2KiB", "3KB"])
        try:
            managed.simulate(devices=3)
        except RuntimeError as error:
            assert "already simulated" in str(error) and "3 of them" in str(error)
        else:
            raise AssertionError
        print(*(torch.sim.mem_get_info(i)[1] for i in range(torch.sim.device_count())))
    """
    assert run_python(program(code)) == "1000 2048 3000\n"


def test_refused_after_a_backward_before_anything_is_registered(run_python):
    code = """
        torch.ones(2, requires_grad=True).sum().backward()
        for _ in range(2):
            try:
                managed.simulate()
            except RuntimeError as error:
                assert "before the first backward" in str(error)
            else:
                raise AssertionError
        assert not hasattr(torch, "sim")
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        torch.ones(2, requires_grad=True).sum().backward()
        print(torch.accelerator.is_available())
    """
    assert run_python(program(code)) == "False\n"


def test_refused_beside_another_backend(run_python):
    code = """
        torch.utils.rename_privateuse1_backend("npu")
        try:
            managed.simulate()
        except RuntimeError as error:
            print(error)
    """
    assert "named torch's PrivateUse1 backend 'npu'" in run_python(program(code))


def test_a_preset_brings_speed_and_memory(run_python):
    code = """
        managed.simulate(1, preset="a100-40g")
        p = torch.sim.get_device_properties(0)
        print(p.name, p.total_memory // 2**30, round(p.flops_per_second / 1e9))
    """
    assert run_python(program(code)) == "A100 40GB 0 40 16575\n"


def test_sixteen_devices_each_run_backward(run_python):
    code = """
        managed.simulate(16, "1MiB")
        for i in range(16):
            x = torch.ones(3, device=f"sim:{i}", requires_grad=True)
            (x * x).sum().backward()
            assert x.grad.device == x.device and x.grad.sum().item() == 6
        del x
        print(sum(torch.sim.memory_allocated(i) for i in range(16)))
    """
    assert run_python(program(code)) == "0\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4x512MiB", [512 * 2**20] * 4),
        (" 2 X 1.5GiB ", [3 * 2**29] * 2),
        ("1KB,2KiB", [1000, 2048]),
        ("4096", [4096]),
        ("", None),
    ],
)
def test_what_the_environment_may_say(monkeypatch, text, expected):
    asked = []
    monkeypatch.setenv("MANAGED_SIM", text)
    monkeypatch.setattr(sim, "simulate", lambda *a: asked.append(plan_devices(*a, None).capacities))
    sim.simulate_from_environment()
    assert asked == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    "text", ["0x1MiB", "17x1MiB", "4x", "x4", "four", "4x-1", "1MiB,", "2x1MiB,2MiB"]
)
def test_what_it_may_not_say(monkeypatch, text):
    monkeypatch.setenv("MANAGED_SIM", text)
    with pytest.raises(ValueError, match="is not like '4x512MiB'"):
        sim.simulate_from_environment()


def test_the_environment_is_read_at_import(run_python):
    code = "print(torch.sim.device_count(), torch.sim.mem_get_info(1))"
    assert run_python(program(code), MANAGED_SIM="3x1MiB") == "3 (1048576, 1048576)\n"
    message = run_python(program(), status=1, stderr="ValueError", MANAGED_SIM="3xlarge")
    assert "MANAGED_SIM='3xlarge' is not like '4x512MiB'" in message


# Everything a program may do in its last moments. Each ends right after work on the engine's
# device threads whose graph holds Python objects, so that those threads still want the GIL.
ENDINGS = {
    "end": "",
    "exit": "raise SystemExit(0)",
    "thread": """
        import threading
        threads = [threading.Thread(target=run) for _ in range(3)]
        [t.start() for t in threads]
    """,
    "thread exits": """
        import sys, threading
        threading.Thread(target=lambda: (run(), sys.exit(0))).start()
    """,
    "error in backward": """
        try:
            Broken.apply(x).sum().backward()
        except KeyError:
            pass
    """,
}
EXITING = """
    managed.simulate(2, "1MiB")

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.kept = object()
            return a * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    class Broken(Double):
        @staticmethod
        def backward(ctx, g):
            raise KeyError

    x = torch.ones(8, 8, device="sim:1", requires_grad=True)

    def run():
        Double.apply(Double.apply(x @ x).to("sim:0")).sum().backward()

    run()
"""


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends_cleanly_right_after_backward(run_python, ending):
    code = program(EXITING, ENDINGS[ending])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda _: run_python(code), range(2)))
    assert outputs == [""] * 2


def test_a_stuck_backward_does_not_keep_the_interpreter(run_python):
    code = program(
        EXITING,
        """
        import threading
        entered = threading.Event()

        class Stuck(Double):
            @staticmethod
            def backward(ctx, g):
                entered.set()
                threading.Event().wait()

        threading.Thread(target=lambda: Stuck.apply(x).sum().backward(), daemon=True).start()
        entered.wait()
        import os
        from managed import _sim
        _sim.park()  # comes back although a device thread never will
        print("parked", flush=True)
        os._exit(0)
        """,
    )
    assert run_python(code, TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT=0.5) == "parked\n"


def test_a_forked_child_has_a_copy_of_the_devices(run_python):
    code = """
        import os, sys
        managed.simulate(2, "1MiB")
        x = torch.ones(100, device="sim:1", requires_grad=True)
        x.sum().backward()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            x.detach().mul_(3)
            assert x.sum().item() == 300 and torch.sim.memory_allocated(1) == 800
            try:
                x.sum().backward()
            except RuntimeError as error:
                assert "fork" in str(error)
            else:
                raise AssertionError
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), x.sum().item())
    """
    assert run_python(program(code)) == "7 100.0\n"


def test_the_hook_makes_room_before_an_allocation_fails_and_hears_what_is_freed(run_python):
    assert run_python(PROGRAMS / "bridge_makes_room.py") == "900\n"


def test_checkers_know_the_device_module_by_another_name(run_python):
    code = """
        assert not hasattr(managed.sim, "memory_allocated")
        managed.simulate(2, "1MiB")
        assert managed.sim.memory_allocated is torch.sim.memory_allocated
        assert all(getattr(managed.sim, n) is getattr(torch.sim, n) for n in torch.sim.__all__)
        assert not hasattr(managed.sim, "no_such_name")
    """
    run_python(program(code))
