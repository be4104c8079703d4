"""The knobs: the heuristic, budgets, frozen blocks, sizes and environment variables."""

import logging
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import managed
from managed import ManagedTensor, device_manager, settings
from managed.settings import VARIABLES, parse_bytes

MiB = 2**20


@pytest.fixture(autouse=True)
def knobs():
    """Every test starts and ends with the knobs as they were."""
    function, used = managed.HEURISTIC_FUNCTION, managed.USE_HEURISTIC
    yield
    managed.HEURISTIC_FUNCTION, managed.USE_HEURISTIC = function, used


# ---- the heuristic


def test_the_default_formula():
    assert managed.USE_HEURISTIC is True
    for size in (0, 1, 2, 100, 4096, 10**12):
        assert managed.HEURISTIC_FUNCTION(size) == size + int(1.5 * size**0.5)


def test_the_heuristic_decides_where_there_is_room():
    x = torch.ones(MiB // 4).as_subclass(ManagedTensor)
    managed.HEURISTIC_FUNCTION = lambda size: 2**40
    assert x.cuda() is x
    managed.USE_HEURISTIC = False
    assert managed.USE_HEURISTIC is False
    assert x.cuda().device.type == "sim"


def test_the_function_is_given_bytes_and_can_be_read_back():
    seen = []

    def function(size):
        seen.append(size)
        return size

    managed.HEURISTIC_FUNCTION = function
    assert managed.HEURISTIC_FUNCTION is function
    torch.ones(10, dtype=torch.float64).as_subclass(ManagedTensor).cuda()
    device_manager.send([torch.ones(3), torch.ones(4)], "sim:1")
    assert seen == [80, 12, 16]


def test_without_the_heuristic_the_function_is_not_called():
    managed.HEURISTIC_FUNCTION = lambda size: 1 / 0
    managed.USE_HEURISTIC = False
    assert torch.ones(2).as_subclass(ManagedTensor).cuda().device.type == "sim"


def test_an_exception_surfaces_as_itself():
    class Own(Exception):
        pass

    def function(size):
        raise Own("mine")

    managed.HEURISTIC_FUNCTION = function
    x = torch.ones(2).as_subclass(ManagedTensor)
    model = managed.ManagedModule.from_module(torch.nn.Linear(2, 2))
    calls = (x.cuda, lambda: device_manager.send(x, "sim:1"), model.cuda)
    for call in (*calls, lambda: model.cuda(disperse=True)):
        with pytest.raises(Own, match="mine"):
            call()
    assert x.device.type == model.weight.device.type == "cpu"
    assert managed.stats()["devices"]["sim:1"]["reserved"] == 0


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("12", TypeError),
        (1.5, TypeError),
        (None, TypeError),
        (True, TypeError),
        (-1, ValueError),
        (2**63, ValueError),
    ],
)
def test_a_result_that_is_no_size_names_the_function(value, error):
    def my_heuristic(size):
        return value

    managed.HEURISTIC_FUNCTION = my_heuristic
    with pytest.raises(error, match=r"my_heuristic.*returned"):
        torch.ones(2).as_subclass(ManagedTensor).cuda()


def test_something_that_is_not_callable():
    before = managed.HEURISTIC_FUNCTION
    with pytest.raises(TypeError, match="not callable"):
        managed.HEURISTIC_FUNCTION = 3
    assert managed.HEURISTIC_FUNCTION is before


@pytest.mark.parametrize("value", [0, 1, None, "no"])
def test_use_heuristic_is_a_bool(value):
    with pytest.raises(TypeError, match="True or False"):
        managed.USE_HEURISTIC = value
    assert managed.USE_HEURISTIC is True


def test_the_old_spelling_works_and_warns():
    def function(size):
        return size

    with pytest.warns(DeprecationWarning, match="HEURISTIC_FUNCTION") as caught:
        managed.HEUSRISTIC_FUNCTION = function
    assert caught[0].filename == __file__
    assert managed.HEURISTIC_FUNCTION is function
    with pytest.warns(DeprecationWarning, match="HEURISTIC_FUNCTION"):
        assert managed.HEUSRISTIC_FUNCTION is function


def test_the_function_may_be_replaced_while_it_runs():
    def function(size):
        managed.HEURISTIC_FUNCTION = lambda size: size
        return size

    managed.HEURISTIC_FUNCTION = function
    del function
    assert torch.ones(2).as_subclass(ManagedTensor).cuda().device.type == "sim"


def test_the_default_refuses_what_is_no_size():
    for bad in (-1, float("nan"), 2**63):
        with pytest.raises(ValueError, match="size is"):
            managed.HEURISTIC_FUNCTION(bad)
    with pytest.raises(TypeError):
        managed.HEURISTIC_FUNCTION("1")
    with pytest.raises(OverflowError):
        managed.HEURISTIC_FUNCTION(2**63 - 1)


# ---- budgets


def test_a_budget_caps_placement_and_is_given_back():
    best = device_manager.find_device(MiB)
    with managed.budget(best, "1MiB") as cap:
        assert cap.bytes == MiB
        assert cap.old == 256 * MiB
        assert str(best) in repr(cap)
        assert device_manager.find_device(MiB) != best
        assert managed.stats()["devices"][str(best)]["capacity"] == MiB
    assert managed.stats()["devices"][str(best)]["capacity"] == 256 * MiB
    assert device_manager.find_device(MiB) == best


def test_a_budget_stands_until_it_is_lifted():
    managed.budget("cuda:1", 2 * MiB)
    try:
        assert managed.stats()["devices"]["sim:1"]["capacity"] == 2 * MiB
    finally:
        managed.budget(1, None)
    assert managed.stats()["devices"]["sim:1"]["capacity"] == 256 * MiB


def test_a_block_that_raises_gives_the_budget_back():
    with pytest.raises(KeyError), managed.budget("sim:2", 0):
        raise KeyError
    assert managed.stats()["devices"]["sim:2"]["capacity"] == 256 * MiB


@pytest.mark.parametrize(
    ("device", "size", "text"),
    [
        ("sim:0", "much", "'much' is no size"),
        ("sim:0", -1, "-1 is no size"),
        ("sim:0", "1GiB", "is more than that"),
        ("sim:9", 1, "there is no device"),
        ("gpu", 1, "names no device"),
        ("cuda", 1, "one accelerator with its index"),
        ("sim:0", "101%", "is no part of sim:0"),
        ("cpu", "much", "'much' is no size"),
    ],
)
def test_bad_budgets_change_nothing(device, size, text):
    before = managed.stats()["devices"]
    with pytest.raises(ValueError, match=text):
        managed.budget(device, size)
    assert managed.stats()["devices"] == before


# ---- sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        (" 300 MiB ", 300 * MiB),
        ("300MB", 300 * 10**6),
        ("1.5G", 3 * 2**29),
        ("2kib", 2048),
        ("1TiB", 2**40),
        ("7B", 7),
        (12, 12),
        (np.int64(12), 12),
        ("9" * 400 + ".5B", 10**400 - 1),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@given(st.integers(0, 2**62))
def test_whole_numbers_lose_nothing(size):
    assert parse_bytes(str(size)) == parse_bytes(size) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "1.5.2G", "10 parsecs", "nan", "1 2", -5])
def test_unparsable_sizes(text):
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)


@pytest.mark.parametrize("thing", [None, 1.5, True, b"1"])
def test_sizes_of_the_wrong_kind(thing):
    with pytest.raises(TypeError, match="a size is an int or a string"):
        parse_bytes(thing)


# ---- frozen


def test_nothing_moves_inside_frozen():
    a = torch.ones(2).as_subclass(ManagedTensor)
    b = a.cuda(1)
    with managed.frozen():
        with pytest.raises(RuntimeError, match="same device"):
            a.cuda(2) + b
        with managed.frozen():
            pass
        with pytest.raises(RuntimeError, match="same device"):
            a.cuda(2) + b
        assert a.cuda(3).device.index == 3
    assert (a.cuda(2) + b).device.type == "sim"


def test_frozen_is_a_decorator_and_ends_with_an_exception():
    a, b = (torch.ones(2).as_subclass(ManagedTensor).cuda(i) for i in (1, 2))

    @managed.frozen()
    def add():
        return a + b

    with pytest.raises(RuntimeError, match="same device"):
        add()
    assert torch.equal((a + b).cpu(), torch.full((2,), 2.0))


def test_frozen_is_of_one_thread():
    a, b = (torch.ones(2).as_subclass(ManagedTensor).cuda(i) for i in (1, 2))
    found = []
    with managed.frozen():
        worker = threading.Thread(target=lambda: found.append(a + b))
        worker.start()
        worker.join()
    assert found[0].device.type == "sim"


# ---- environment variables


@pytest.mark.parametrize(
    ("name", "value", "shows", "expected"),
    [
        ("MANAGED_RESERVED", "0.5", "m.device_manager.reserved", "0.5"),
        ("MANAGED_RETRY_LIMIT", "3", "m.device_manager.retry_limit", "3"),
        ("MANAGED_WAIT_TIME", "2", "m.device_manager.wait_time", "2.0"),
        ("MANAGED_HEURISTIC", "0", "m.USE_HEURISTIC", "False"),
        ("MANAGED_HEURISTIC", "1", "m.USE_HEURISTIC", "True"),
        ("MANAGED_MAPS", "0", "m.KEEP_MAPS", "False"),
        ("MANAGED_SIM", "3x8MiB", "len(m.device_manager.cuda_devices)", "3"),
        ("MANAGED_SIM", "", "m.device_manager.cuda_devices", "[]"),
    ],
)
def test_variables_have_their_effect(run_python, name, value, shows, expected):
    assert name in VARIABLES
    printed = run_python(f"import managed as m; print({shows})", **{name: value})
    assert printed.strip() == expected


CAPACITIES = "import managed; from managed import _C; print([_C.capacity(i) for i in range(2)])"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1=50%", [8 * MiB, 4 * MiB]),
        ("0=3MiB", [3 * MiB, 8 * MiB]),
        (" 1 = 12.5% , 0 = 100B ", [100, MiB]),
        ("0=0B,1=100%", [0, 8 * MiB]),
        ("", [8 * MiB, 8 * MiB]),
    ],
)
def test_budgets_by_the_environment(run_python, value, expected):
    simulated = {"MANAGED_SIM": "2x8MiB", "MANAGED_BUDGET": value}
    assert run_python(CAPACITIES, **simulated) == f"{expected}\n"
    later = CAPACITIES.replace("; from", "; managed.simulate(2, '8MiB'); from")
    assert run_python(later, MANAGED_BUDGET=value) == f"{expected}\n"


def test_a_budget_by_the_environment_is_kept_and_lifted(run_python):
    code = """
        import torch, managed
        managed.simulate(1, "8MiB")
        made = lambda i: torch.full((2**18,), float(i)).as_subclass(managed.ManagedTensor)
        kept = [made(i).cuda(0) for i in range(6)]
        assert torch.sim.max_memory_allocated(0) <= 3 * 2**20
        assert [t[0].item() for t in kept] == [0, 1, 2, 3, 4, 5]
        with managed.budget(0, "1MiB") as budget:
            print(budget.old)
        managed.budget(0, None)
        print(managed._C.capacity(0))
        """
    assert run_python(code, MANAGED_BUDGET="0=3MiB") == f"{3 * MiB}\n{8 * MiB}\n"


def test_a_loop_of_a_library_falls_back_to_the_host_by_the_environment(run_python):
    """It gathers results until they are larger than the half of its device."""
    code = """
        import torch, managed
        managed.simulate(1, "8MiB")
        parts = [torch.full((2**18,), float(i)) for i in range(7)]
        made = parts[0].as_subclass(managed.ManagedTensor).cuda(0)
        for part in parts[1:]:
            made = torch.cat((made, part.as_subclass(managed.ManagedTensor).cuda(0)))
        print(made.device, torch.equal(made.cpu(), torch.cat(parts)))
        """
    assert run_python(code, MANAGED_BUDGET="0=100%+host") == "cpu True\n"
    run_python(code, status=1, stderr="OutOfMemoryError", MANAGED_BUDGET="0=100%")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("0=9MiB", "device 0 a budget that it cannot have: sim:0 has 8 MiB"),
        ("2=1MiB", "device 2 a budget that it cannot have: there are 2 devices"),
    ],
)
def test_a_budget_that_a_device_cannot_have_warns(run_python, value, says):
    code = f"""
        import warnings, managed
        warnings.simplefilter("default")
        managed.simulate(2, "8MiB")
        assert [managed._C.capacity(i) for i in range(2)] == [{8 * MiB}] * 2
        """
    told = run_python(code, stderr="RuntimeWarning: managed: MANAGED_BUDGET", MANAGED_BUDGET=value)
    assert says in told
    run_python("import managed", status=1, stderr=says, MANAGED_BUDGET=value, MANAGED_SIM="2x8MiB")


def test_a_size_without_a_unit_in_the_environment_is_bytes_and_warns(run_python):
    said = run_python("import managed", status=1, stderr="'50MiB'", MANAGED_BUDGET="0=50")
    assert "a budget of '50' is 50 bytes" in said


def test_the_log_variable(run_python):
    code = "from managed import device_manager as d; d.log('seen'); d.log('not', 10)"
    assert run_python(code, stderr="seen", MANAGED_LOG="info").strip() == "seen"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MANAGED_RESERVED", "2"),
        ("MANAGED_RESERVED", "half"),
        ("MANAGED_RETRY_LIMIT", "-1"),
        ("MANAGED_HEURISTIC", "maybe"),
        ("MANAGED_LOG", "loud"),
        ("MANAGED_SIM", "many"),
        ("MANAGED_BUDGET", "4GiB"),
        ("MANAGED_BUDGET", "0=much"),
        ("MANAGED_BUDGET", "0=101%"),
        ("MANAGED_BUDGET", "0="),
        ("MANAGED_BUDGET", "0=+host"),
        ("MANAGED_BUDGET", "0=1GiB+peer"),
        ("MANAGED_BUDGET", "=4GiB"),
        ("MANAGED_BUDGET", "-1=4GiB"),
        ("MANAGED_BUDGET", "sim:0=4GiB"),
        ("MANAGED_BUDGET", "64=4GiB"),
        ("MANAGED_BUDGET", "0=4GiB,0=5GiB"),
        ("MANAGED_BUDGET", "0=4GiB,"),
    ],
)
def test_bad_variables_are_named(run_python, name, value):
    assert f"{name}=" in run_python("import managed", status=1, stderr=value, **{name: value})


def test_the_logger_is_silent_by_itself():
    logger = logging.getLogger("managed")
    assert settings.logger is logger
    assert any(isinstance(h, logging.NullHandler) for h in logger.handlers)
