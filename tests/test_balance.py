"""Modules that the manager has placed come to devices that have time for them."""

import json

import pytest
from slices import slice_of

from managed._sim_presets import DEFAULT

pytestmark = pytest.mark.only_simulated("nobody knows how long CUDA's operators take")

# Eight models that work, all on one device: it is the fullest that still fits.
BEGIN = """
import torch, managed
from torch import nn
from managed import ManagedModule, ManagedTensor, _C

VALUES = {values}
SLOW = {slow}
managed.simulate(devices=4, memory="4GiB", values=VALUES, preset=SLOW, repeatable=True)
torch.set_num_threads(1)
torch.manual_seed(0)

def model(width=512):
    first, last = nn.Linear(width, width), nn.Linear(width, width)
    return nn.Sequential(first, nn.BatchNorm1d(width), nn.Tanh(), last)

def made(put=lambda m: ManagedModule.from_module(m).cuda(), n=8):
    return [put(model()) for _ in range(n)]

def step_of(m, x, kind=torch.optim.AdamW, **how):
    optimizer = kind(m.parameters(), 1e-3, **how)
    def step():
        optimizer.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    return step

def turns(steps, n):
    for _ in range(n):
        for step in steps:
            last = step()
    return last

def devices(models):
    found = []
    for m in models:
        where = {{t.device.index for t in [*m.parameters(), *m.buffers()]}}
        assert len(where) == 1, where
        found += where
    return found

x = torch.randn(2048, 512).as_subclass(ManagedTensor).cuda(0)
"""


@pytest.fixture
def run(run_python):
    return lambda code: run_python(BEGIN.format(values=False, slow=None) + code)


@pytest.fixture(name="run_with_values")
def makes_run_with_values(run_python, tmp_path):
    """Every operator takes its device 0.2 ms at least, so that small models make it late."""
    path = tmp_path / "slow.json"
    told = DEFAULT._replace(launch_ns=200_000)
    path.write_text(json.dumps(told._asdict() | {"efficiency": told.efficiency._asdict()}))
    return lambda code: run_python(BEGIN.format(values=True, slow=repr(str(path))) + code)


def test_models_of_one_device_spread_over_those_that_have_time(run):
    said = run("""
models = made()
assert devices(models) == [0] * 8
steps = [step_of(m, x) for m in models]
turns(steps, 60)
found = devices(models)
assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 3], found
moves = managed.stats()["move"]
turns(steps, 60)
assert devices(models) == found and managed.stats()["move"] == moves
print(managed.explain(models[found.index(3)][0].weight))
""")
    assert "its device had more to do, step after step" in said


@pytest.mark.slow
def test_it_is_faster(run):
    said = run("""
def ran(learns):
    managed.LEARN_STEPS = learns
    steps = [step_of(m, x) for m in made()]
    turns(steps, 60)
    for i in range(4):
        torch.sim.synchronize(i)
    before = torch.sim.elapsed()
    turns(steps, 20)
    return torch.sim.elapsed() - before

print(ran(False) / ran(True))
""")
    assert float(said) > 3


def test_the_values_are_those_of_models_that_stay(run_with_values):
    """The optimizer's state follows, and what the batch norm has counted."""
    run_with_values("""
small = x[:64, :32].contiguous()

def trained(kind, **how):
    torch.manual_seed(1)
    models = [ManagedModule.from_module(model(32)).cuda() for _ in range(3)]
    steps = [step_of(m, small, kind, **how) for m in models]
    turns(steps, 20)
    losses = [step().item() for step in steps]
    return models, [t.cpu() for m in models for t in [*m.parameters(), *m.buffers()]], losses

for kind, how in (
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.SGD, {"momentum": 0.9}),
):
    managed.LEARN_STEPS = False
    models, values, losses = trained(kind, **how)
    assert set(devices(models)) == {0}
    managed.LEARN_STEPS = True
    models, others, other_losses = trained(kind, **how)
    assert sorted(devices(models)) != [0] * 3
    assert all(torch.equal(a, b) for a, b in zip(values, others, strict=True))
    assert losses == other_losses
""")


STAYS = {
    "named": "models = made(lambda m: ManagedModule.from_module(m).cuda(0))",
    "named later": "models = made(); [m.cuda(0) for m in models]",
    "a part is named": "models = made(); [m[0].cuda(0) for m in models]",
    "pinned": "models = made(); [m[3].pin() for m in models]",
    "unplaced": "models = made(); [m.unplace() for m in models]",
    "compiled": "models = made(); [m[2].compile(backend='eager') for m in models]",
    "others have its bytes": "models = made(); held = [m[0].weight.detach() for m in models]",
    "a pointer has left": "models = made(); held = [m[0].weight.data_ptr() for m in models]",
    "learning is off": "models = made(); managed.LEARN_STEPS = False",
    "frozen": "models = made(); still = managed.frozen(); still.__enter__()",
}


@pytest.mark.parametrize("case", slice_of(STAYS, 2))
def test_what_stays(run, case):
    run(
        STAYS[case]
        + """
turns([step_of(m, x) for m in models], 15)
assert devices(models) == [0] * 8, devices(models)
"""
    )


@pytest.mark.slow
def test_who_waits_for_each_step_stays(run):
    """Nothing would be done sooner."""
    run("""
models = made()
steps = [step_of(m, x) for m in models]
for _ in range(60):
    for step in steps:
        step()
        torch.sim.synchronize(0)
assert devices(models) == [0] * 8, devices(models)
""")


@pytest.mark.slow
def test_models_that_work_with_what_others_make_stay_together(run):
    """A generator and what judges it gain nothing by a second device. They try it once."""
    run("""
maker, judge = made(n=2)
makes = torch.optim.SGD(maker.parameters(), 1e-3)
judges = torch.optim.SGD(judge.parameters(), 1e-3)

def turn():
    judges.zero_grad()
    judge(maker(x).detach()).square().mean().backward()
    judges.step()
    makes.zero_grad()
    judge(maker(x)).square().mean().backward()
    makes.step()

for _ in range(60):
    turn()
found, moves = devices([maker, judge]), managed.stats()["move"]
assert found[0] == found[1], found
for _ in range(200):
    turn()
assert managed.stats()["move"] == moves
""")


@pytest.mark.slow
def test_devices_that_the_manager_does_not_have_get_nothing(run):
    run("""
manager = managed.DeviceManager(cuda_devices=[0, 2])
models = [manager.cuda(ManagedModule.from_module(model())) for _ in range(8)]
turns([step_of(m, x) for m in models], 60)
assert sorted(devices(models)) == [0] * 4 + [2] * 4, devices(models)
""")


@pytest.mark.slow
def test_a_program_inside_of_on(run):
    """Placed by bytes; two of them are large and do little."""
    run("""
with managed.on():
    def embedded(n):
        return nn.Sequential(nn.Embedding(n, 512), model()).requires_grad_(n < 2000).to("cuda")
    models = [embedded(200_000) for _ in range(2)] + [embedded(1000) for _ in range(8)]
    for m in models:
        m[1].requires_grad_()
    before = devices(models)
    assert before.count(before[0]) == before.count(before[1]) == 1, before
    def of(m, rows):
        kind = torch.optim.SGD(m.parameters(), 1e-3)
        tokens = torch.randint(1000, (rows,), device="cuda")
        def step():
            kind.zero_grad()
            m(tokens).square().mean().backward()
            kind.step()
        return step
    turns([of(m, 16 if i < 2 else 4096) for i, m in enumerate(models)], 80)
    after = devices(models)
    assert max(after[2:].count(d) for d in range(4)) <= 3, after
""")


@pytest.mark.slow
def test_a_device_that_is_full_gets_nothing(run):
    run("""
full = [torch.empty(4 * 2**30 - 2**20, dtype=torch.uint8, device=f"sim:{i}") for i in (1, 2)]
models = made()
turns([step_of(m, x) for m in models], 60)
assert sorted(devices(models)) == [0] * 4 + [3] * 4, devices(models)
""")


@pytest.mark.slow
def test_modules_that_die_are_forgotten(run):
    run("""
import gc
from managed import _balance
models = made()
assert len(_balance._roaming) == 8
steps = [step_of(m, x) for m in models]
turns(steps, 5)
del models, steps
gc.collect()
assert not _balance._roaming and not _balance._of_part
""")
