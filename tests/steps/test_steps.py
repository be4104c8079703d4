"""Steps that repeat under a budget are learned; what that changes, and what it never does."""

import copy
import threading

import pytest
import torch
from support.devices import D0, device_module
from support.pressure import MiB, assert_equal, mlp, module_on, on, train
from torch import nn

import managed
from managed import _C

pytestmark = pytest.mark.not_under_torture("torture lets leave what no plan knows of")

ONE = 1  # the first accelerator, as the core numbers it
WIDTH, DEPTH, STEPS = 256, 8, 8


@pytest.fixture(autouse=True)
def nothing_is_known():
    managed.LEARN_STEPS = False
    managed.LEARN_STEPS = True
    yield
    managed.LEARN_STEPS = True


def state():
    return _C.step_state(ONE)


def adam(model):
    return torch.optim.AdamW(model.parameters(), 1e-3)


class Program:
    """A model, its optimizer and data; plain, or on the device."""

    def __init__(self, put_module, put):
        torch.manual_seed(0)
        self.model = put_module(mlp(WIDTH, DEPTH))
        self.optimizer = adam(self.model)
        self.batch = put(torch.randn(512, WIDTH))

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach().cpu()

    def look(self):
        with torch.no_grad():
            return self.model(self.batch).detach().cpu()


def budget_for(fraction):
    """A part of what training takes beside what is there."""
    before = device_module.memory_allocated(D0)
    device_module.reset_peak_memory_stats(D0)
    program = Program(module_on, on)
    for _ in range(2):
        program.step()
    needed = device_module.max_memory_allocated(D0) - before
    del program
    return managed.budget(D0, before + int(fraction * needed))


def plain(steps):
    program = Program(lambda m: m, lambda t: t)
    return [program.step() for _ in range(steps)], program


@pytest.mark.parametrize("fraction", [0.8, 0.6, 0.4])
def test_a_step_is_learned_by_the_third_and_gives_the_same_numbers(fraction):
    expected, there = plain(STEPS)
    with budget_for(fraction):
        here = Program(module_on, on)
        losses, follows = [], []
        for _ in range(STEPS):
            losses.append(here.step())
            follows.append(state()["follows"])
        assert follows.index(True) <= 2
        assert state()["lost"] == 0
        assert_equal(expected, losses)
        assert_equal(
            [p.detach() for p in there.model.parameters()],
            [p.detach().cpu() for p in here.model.parameters()],
        )


@pytest.mark.only_simulated(
    "CUDA's allocator keeps segments, so that what leaves depends on pieces"
)
def test_once_learned_nothing_leaves_in_a_hurry_and_no_thread_waits():
    with budget_for(0.6):
        here = Program(module_on, on)
        for _ in range(STEPS):
            here.step()
        managed.stats(reset=True)
        before = managed.stats()["events"]
        here.optimizer.zero_grad()
        here.model(here.batch).square().mean().backward()
        here.optimizer.step()
        counted = managed.stats()
        assert counted["spill"] + counted["spare"] > 0
        assert counted["host_waits"] == 0
        reasons = {
            e.reason
            for e in managed.explain()
            if e.sequence > before and e.kind in ("spill", "drop", "spare")
        }
        assert not any("no room" in r for r in reasons)


@pytest.mark.only_simulated("it looks at virtual time")
def test_learning_saves_time():
    took = {}
    for learns in (False, True):
        managed.LEARN_STEPS = learns
        with budget_for(0.6):
            here = Program(module_on, on)
            for _ in range(STEPS):
                here.step()
            torch.sim.synchronize(0)
            begin = torch.sim.elapsed()
            for _ in range(3):
                here.step()
            torch.sim.synchronize(0)
            took[learns] = torch.sim.elapsed() - begin
            del here
    assert took[True] < took[False]


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_that_lies_costs_time_and_no_bit(seed):
    expected, _ = plain(STEPS)
    with budget_for(0.5):
        here = Program(module_on, on)
        losses = []
        for k in range(STEPS):
            losses.append(here.step())
            if state()["follows"] and k > 3:
                _C.lie(ONE, seed * 1000 + k)
        assert state()["follows"]
        assert_equal(expected, losses)


def test_training_and_looking_in_turns():
    """Two programs on one model: the plan of one is kept while the other runs."""
    _, there = plain(0)
    with budget_for(0.6):
        here = Program(module_on, on)
        for k in range(24):
            assert_equal([there.step()], [here.step()])
            if k % 3 == 2:
                assert_equal([there.look()], [here.look()])


@pytest.mark.not_sanitized("two models train")
def test_two_threads_on_one_device():
    """What they do together does not repeat; what each does is right."""
    expected, _ = plain(STEPS)
    found = {}
    with budget_for(1.1):

        def work(name):
            torch.manual_seed(0)
            here = programs[name]
            found[name] = [here.step() for _ in range(STEPS)]

        programs = {name: Program(module_on, on) for name in ("a", "b")}
        threads = [threading.Thread(target=work, args=(name,)) for name in programs]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        programs.clear()
    assert_equal(expected, found["a"])
    assert_equal(expected, found["b"])


def test_it_can_be_switched_off():
    managed.LEARN_STEPS = False
    assert managed.LEARN_STEPS is False
    with budget_for(0.6):
        here = Program(module_on, on)
        for _ in range(STEPS):
            here.step()
        assert not state()["follows"]
        assert not state()["logs"]
        managed.LEARN_STEPS = True
        for _ in range(3):
            here.step()
        assert state()["follows"]
        managed.LEARN_STEPS = False
        assert not state()["follows"]
        here.step()
    for wrong in (1, None, "yes"):
        with pytest.raises(TypeError, match="LEARN_STEPS"):
            managed.LEARN_STEPS = wrong


@pytest.mark.only_simulated("a budget of 1 MiB is half a segment of CUDA's allocator")
def test_inference_brings_each_pass_only_what_has_no_room():
    """Furthest next use: of 16 weights of which four fit, two need not come back."""
    width, depth = 256, 16
    here = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth)))
    weights = depth * width * width * 4
    with (
        torch.no_grad(),
        managed.budget(D0, device_module.memory_allocated(D0) + weights // 4 + MiB // 4),
    ):
        net, x = module_on(copy.deepcopy(here)), on(torch.randn(8, width))
        expected = here(x.cpu())
        for _ in range(6):
            managed.stats(reset=True)
            assert torch.equal(net(x).cpu(), expected)
        assert managed.stats()["restore_bytes"] < weights
        assert managed.stats()["spill_bytes"] == 0


def test_what_is_learned_survives_a_model_that_dies():
    with budget_for(0.6):
        for _ in range(2):
            here = Program(module_on, on)
            expected, _ = plain(4)
            assert_equal(expected, [here.step() for _ in range(4)])
            del here


def test_batches_of_changing_sizes():
    def squares(model, x):
        return model(x).square().mean()

    def trained(model, put):
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        return train(model, [(put(x),) for x in batches], optimizer, squares)

    model = mlp(WIDTH, DEPTH)
    batches = [torch.randn(64 * (1 + k % 5), WIDTH) for k in range(10)]
    expected = trained(copy.deepcopy(model), lambda t: t)
    with budget_for(0.6):
        assert_equal(expected, trained(module_on(copy.deepcopy(model)), on))


class Cell(nn.Module):
    """The same weights again and again: a short period within the step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for _ in range(12):
            x = torch.tanh(self.cell(x))
        return x


@pytest.mark.only_simulated("a budget of 2 MiB is one segment of CUDA's allocator")
def test_a_loop_within_the_step_is_not_taken_for_the_step():
    torch.manual_seed(0)
    there, x = Cell(), torch.randn(256, WIDTH)
    before = device_module.memory_allocated(D0)
    with managed.budget(D0, before + 2 * MiB):
        here, y = module_on(copy.deepcopy(there)), on(x)
        optimizers = [adam(there), adam(here)]
        for _ in range(STEPS):
            for model, data, optimizer in zip((there, here), (x, y), optimizers, strict=True):
                optimizer.zero_grad()
                model(data).square().mean().backward()
                optimizer.step()
            assert torch.equal(here.cell.weight.cpu(), there.cell.weight)
        assert state()["follows"]
        assert state()["operators"] > 36  # 12 products forward, 24 back


def moved():
    figures = managed.stats()
    return sum(figures[f"{what}_bytes"] for what in ("spill", "spare", "restore"))


def bytes_by_step(step, steps):
    found = []
    for _ in range(steps):
        managed.stats(reset=True)
        step()
        found.append(moved())
    return found


def deep(layers=10):
    """Activations between the layers: operators in a row that use no weight."""
    parts = [
        part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Tanh())
    ]
    return module_on(nn.Sequential(*parts))


@pytest.mark.only_simulated("a budget of 7 MiB is three segments of CUDA's allocator")
@pytest.mark.parametrize("keeps", [False, True], ids=["the_first_dies", "the_first_lives"])
def test_a_second_training_moves_as_little_as_the_first(keeps):
    kept = []

    def train_one():
        model = deep()
        optimizer, x = adam(model), torch.randn(64, WIDTH)

        def step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        found = bytes_by_step(step, 6)
        kept.append(model if keeps else None)
        return found

    with managed.budget(D0, device_module.memory_allocated(D0) + 7 * MiB):
        first, second, third = train_one(), train_one(), train_one()
    assert first[-1] < 0.9 * first[1]
    assert max(second[-1], third[-1]) < 1.05 * first[-1]


@pytest.mark.only_simulated("a budget of 8 MiB is four segments of CUDA's allocator")
@pytest.mark.parametrize("passes", [1, 3])
def test_scoring_passes_do_not_hide_the_round(passes):
    """They repeat within each round; it is the round that is planned."""

    def rounds(passes):
        model, reference = deep(), deep()
        optimizer, x = adam(model), torch.randn(64, WIDTH)

        def step():
            with torch.no_grad():
                target = reference(x)
                for _ in range(passes):
                    model(x)
            optimizer.zero_grad()
            (model(x) - target).square().mean().backward()
            optimizer.step()

        return bytes_by_step(step, 6)

    with managed.budget(D0, device_module.memory_allocated(D0) + 8 * MiB):
        alone = rounds(0)
        assert max(rounds(passes)[3:]) < 1.05 * alone[-1]


@pytest.mark.only_simulated("it counts the simulator's errors")
def test_a_planned_fetch_that_finds_no_room_is_no_error():
    """An operator on all parameters: the plan wants more back than there is room for."""
    parameters = [nn.Parameter(on(torch.ones(64, 64))) for _ in range(96)]
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    before = device_module.memory_stats(D0)["num_ooms"]
    with managed.budget(D0, device_module.memory_allocated(D0) + int(1.4 * 96 * 16384)):
        for _ in range(6):
            for p in parameters:
                p.grad = torch.ones_like(p)
            optimizer.step()
    assert device_module.memory_stats(D0)["num_ooms"] == before
