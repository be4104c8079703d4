"""Devices without values: what they know, what they refuse, and that they count as others do."""

import json

import pytest
import torch
from programs.no_values.no_values import CHECKS
from support import interpreters
from support.paths import PROGRAMS
from support.slices import slice_of

import managed
from managed._simulated.presets import PRESETS
from managed._simulated.spec import plan_devices

pytestmark = pytest.mark.only_simulated("they are simulated devices")

HERE = PROGRAMS / "no_values"
VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])


def written(program, *files, every=()):
    """What a program writes into the files that are its arguments."""
    done = interpreters.run([HERE / program, *files, *every], cwd=HERE, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """Which checks failed, and how: all run in one process."""
    file = tmp_path_factory.mktemp("no_values") / "failed.json"
    return written("no_values.py", file)[0]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.not_sanitized("address space of terabytes, and a fault that is asked for")
def test_check(failed, check):
    assert check not in failed, failed[check]


def compared(tmp_path, program, every):
    """What a program writes with values, and without, of each so-many-th case."""
    files = [tmp_path / "values.json", tmp_path / "nothing.json"]
    return written(program, *files, every=[every])


#: Operators for which a run without values differs, and why.
VALUES = "its shape or its bytes depend on values"
DIFFERENT = {
    "combinations": VALUES,
    "masked_select": VALUES,
    "unique": VALUES,
    "unique_consecutive": VALUES,
    "nonzero": VALUES,
    "argwhere": VALUES,
    "repeat_interleave": VALUES,
    "narrow": "where it begins is a tensor",
    "nn.functional.ctc_loss": "lengths are tensors",
    "linalg.lstsq": "how many residuals depends on the rank",
    "linalg.lstsq.grad_oriented": "how many residuals depends on the rank",
    "cov": "asks whether weights are positive",
    "masked_fill": f"the gradient of the value: {VALUES}",
    "masked_scatter": f"the gradient of the source: {VALUES}",
    "index_fill": f"the gradient of the value: {VALUES}",
    "index_put": f"the gradient of the values: {VALUES}",
    "prod": f"the gradient looks for zeros: {VALUES}",
    "to_sparse": "strided tensors only",
    "histogramdd": "torch has no meta kernel",
    "nn.functional.embedding_bag": "torch's meta kernel tells another size of what is kept",
    "nn.functional.rms_norm": "strides of a tensor without elements",
    "nn.functional.unfold": "the CPU's kernel allocates the padding of the gradient as well",
    "linalg.eig": "the gradient asks whether it is well defined",
}


@pytest.mark.not_under_torture("it compares what moves")
@pytest.mark.not_sanitized("address space of terabytes")
@pytest.mark.parametrize("every", slice_of([24, 1]))
def test_operators_tell_the_form_bytes_and_time_of_a_run_with_values(tmp_path, every):
    values, nothing = compared(tmp_path, "no_values_operators.py", every)
    assert values.keys() == nothing.keys()
    assert len(values) > 600 // every

    def fails(row):  # torch's own error, with values too
        return isinstance(row[0], str) or (len(row) > 1 and isinstance(row[1], str))

    different = {
        name
        for name, rows in values.items()
        if any(a != b and not fails(a) for a, b in zip(rows, nothing[name], strict=True))
    }
    listed = set(DIFFERENT)
    if VERSION < (2, 12):  # its meta kernels tell other strides, and so other copies
        listed |= {name for name in values if name.startswith("fft.")}
    assert different <= listed, {n: (values[n], nothing[n]) for n in sorted(different - listed)}
    if VERSION == (2, 13) and every == 1:
        assert listed <= different


@pytest.mark.not_under_torture("it compares what moves")
@pytest.mark.not_sanitized("address space of terabytes")
@pytest.mark.parametrize("every", slice_of([5, 1]))
def test_models_count_what_they_count_with_values(tmp_path, every):
    values, nothing = compared(tmp_path, "no_values_models.py", every)
    assert len(values) == 30 // every
    for name, row in values.items():
        assert nothing[name] == row, name
    assert sum(row["end"] == "trained" for row in values.values()) > 20 // every
    assert sum(row["spill"] > 0 for row in values.values()) > 10 // every


# ---- what simulate() takes


def test_unknown_values_can_be_an_error(run_python):
    output = run_python(
        """
        import torch, managed
        managed.simulate(1, values=False, unknown="error")
        x = torch.empty(3, device="sim:0")
        for ask in (lambda: x.sum().item(), lambda: bool((x > 0).all()), lambda: x.cpu(),
                    lambda: torch.equal(x, x + 1)):
            try:
                ask()
            except RuntimeError as error:
                print(error)
        print(torch.arange(3, device="sim:0").sum().item())
        """
    )
    lines = output.splitlines()
    assert len(lines) == 5
    assert lines[4] == "3"
    assert all("which devices without values (values=False) do not know" in n for n in lines[:4])


def test_two_runs_take_the_same_time(run_python):
    program = """
        import torch, managed
        from torch import nn
        managed.simulate(4, "2GiB", "h100-sxm", values=False)
        model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)])
        managed.ManagedModule.from_module(model).cuda(disperse=True)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.empty(64, 2048).as_subclass(managed.ManagedTensor).cuda()
        with managed.budget("sim:0", "200MiB"):
            for _ in range(3):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
        print(round(torch.sim.elapsed() * 1e9), torch.sim.busy())
        """
    assert run_python(program) == run_python(program)


def test_wrong_arguments_change_nothing():
    with pytest.raises(TypeError, match="values is True or False, not 1"):
        managed.simulate(4, values=1)
    with pytest.raises(ValueError, match='unknown is "zero" or "error"'):
        managed.simulate(4, unknown="nan")
    with pytest.raises(ValueError, match=r"the host has .* cannot take .*values=False"):
        managed.simulate(4, host_memory="4000TiB")
    with pytest.raises(ValueError, match="is no size"):
        managed.simulate(4, host_memory="much")
    with pytest.raises(RuntimeError, match=r"other devices|already simulated"):
        managed.simulate(4, "256MiB", values=False)


def test_the_hosts_memory_is_the_presets_without_values():
    assert (
        plan_devices(1, None, "h100-sxm", values=False).host_memory
        == PRESETS["h100-sxm"].host_memory
    )
    assert plan_devices(1, None, "h100-sxm").host_memory is None
    assert plan_devices(1, None, None, host_memory="1GiB").host_memory == 1024**3
    assert plan_devices(1, None, None, values=False).repeatable
    assert not plan_devices(1, None, None, None, False, None).values
    assert not plan_devices(1, None, None, repeatable=False, values=False).repeatable


def test_devices_with_values_know_all():
    from managed import _sim

    assert _sim.is_known(torch.randn(3, device="sim:0"))
    assert _sim.is_known(torch.randn(3))
