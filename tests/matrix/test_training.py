"""Training

What stands around a training step: checkpointing, mixed precision, determinism, profiling.
"""

import pytest
import torch
import torch.nn.functional as F
from support.devices import DEVICE_TYPE
from torch import nn
from torch.optim import swa_utils
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from .common import Place, same


def network(dropout=0.0):
    return nn.Sequential(
        nn.Linear(6, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 16), nn.Tanh(),
        nn.Dropout(dropout), nn.Linear(16, 4),
    )  # fmt: skip


def data():
    return torch.randn(8, 6, requires_grad=True), torch.randint(0, 4, (8,))


REENTRANT = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])


@REENTRANT
@pytest.mark.row("torch.utils.checkpoint", note="reentrant and not")
def test_checkpoint(place, reentrant):
    net, (x, y) = network(), data()
    there, (xs, ys) = place.module(net), place(x, y)
    F.cross_entropy(net(x), y).backward()
    out = checkpoint(there[:4], xs, use_reentrant=reentrant)
    out = checkpoint_sequential(there[4:], 2, out, use_reentrant=reentrant)
    F.cross_entropy(out, ys).backward()
    place.same_gradients(net, there)
    place.same_gradients([x], [xs])


@REENTRANT
@pytest.mark.row("torch.utils.checkpoint", note="dropout is repeated, also over devices")
def test_checkpoint_repeats_dropout(place, reentrant):
    net, (x, y) = network(0.5), data()
    first, second = (Place(place.name) for _ in range(2))
    grads = []
    for there, run in (
        (first, lambda net, x: net(x)),
        (second, lambda net, x: checkpoint(net, x, use_reentrant=reentrant)),
    ):
        module, xs, ys = there.module(net), there(x), there(y)
        torch.manual_seed(3)
        F.cross_entropy(run(module, xs), ys).backward()
        grads.append([p.grad.cpu() for p in module.parameters()])
    same(*grads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.row("autocast", note="bfloat16 and float16; name each device type in use")
def test_autocast(place, dtype):
    net, (x, y) = network(), data()
    there, (xs, ys) = place.module(net), place(x, y)
    with torch.autocast("cpu", dtype):
        out = net(x)
    with torch.autocast(DEVICE_TYPE, dtype), torch.autocast("cpu", dtype):
        result = there(xs)
    assert result.dtype == dtype
    same(out, result)
    F.cross_entropy(out.float(), y).backward()
    F.cross_entropy(result.float(), ys).backward()
    place.same_gradients(net, there)


@pytest.mark.row("GradScaler", note="an overflow skips the step")
def test_grad_scaler(place):
    net, (x, y) = network(), data()
    there, (xs, ys) = place.module(net), place(x, y)
    scales = []
    for n, a, b, device in ((net, x, y, "cpu"), (there, xs, ys, DEVICE_TYPE)):
        optimizer = torch.optim.AdamW(n.parameters(), 1e-2)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
        for step in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(n(a), b) * (float("inf") if step == 1 else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        scales.append(scaler.get_scale())
    assert scales[0] == scales[1]
    for p, q in zip(net.parameters(), there.parameters(), strict=True):
        same(p, q)


@pytest.mark.row("Deterministic algorithms")
@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic(place, warn_only):
    x, i = torch.randn(6, 3), torch.tensor([0, 2, 2, 1, 5, 0])
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        a, b = place(x, i)
        same(x.index_add(0, i, x), a.index_add(0, b, a))
        same(x.index_put((i,), x, accumulate=True), a.index_put((b,), a, accumulate=True))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
@pytest.mark.row("Profiler", note="operators show under their names, once")
def test_profiler(place):
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    a, b = place(x, w)
    with (
        profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p,
        record_function("mine"),
    ):
        torch.tanh(a @ b).sum().backward()
    names = [e.name for e in p.events()]
    assert {"mine", "aten::mm", "aten::tanh", "aten::sum", "TanhBackward0"} <= set(names)
    assert names.count("aten::tanh") == 1


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
@pytest.mark.row("Anomaly detection", note="names the operator of the forward pass")
def test_anomaly_mode(place):
    x = place(torch.zeros(3, requires_grad=True))
    y = place(torch.ones(3))
    with torch.autograd.detect_anomaly(check_nan=True):
        out = (torch.sqrt(x) * y * 0).sum()
        with (
            pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
            pytest.raises(RuntimeError, match=r"SqrtBackward0.*returned nan"),
        ):
            out.backward()


@pytest.mark.row("clip_grad_value_, clip_grad_norm_", note="a norm over devices rounds differently")
def test_gradient_clipping(place):
    net, (x, y) = network(), data()
    there, (xs, ys) = place.module(net), place(x, y)
    for n, a, b in ((net, x, y), (there, xs, ys)):
        F.cross_entropy(n(a), b).backward()
    nn.utils.clip_grad_value_(net.parameters(), 0.02)
    nn.utils.clip_grad_value_(there.parameters(), 0.02)
    place.same_gradients(net, there)
    norms = [nn.utils.clip_grad_norm_(n.parameters(), 0.01) for n in (net, there)]
    torch.testing.assert_close(norms[1].cpu(), norms[0])
    for p, q in zip(net.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad)


@pytest.mark.row(
    "parameters_to_vector of parameters on several devices",
    "refused: TypeError",
    note="torch's own check",
)
def test_parameters_to_vector():
    vector = nn.utils.parameters_to_vector
    net = network()
    same(vector(net.parameters()), vector(Place("one").module(net).parameters()))
    with pytest.raises(TypeError, match="different devices"):
        vector(Place("mixed").module(net).parameters())


@pytest.mark.row("Learning rate schedulers, SWA")
def test_schedulers(place):
    net, (x, y) = network(), data()
    there, (xs, ys) = place.module(net), place(x, y)
    states = []
    for n, a, b in ((net, x, y), (there, xs, ys)):
        optimizer = torch.optim.SGD(n.parameters(), 0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        average = swa_utils.AveragedModel(n, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(n(a), b).backward()
            optimizer.step()
            schedule.step()
            average.update_parameters(n)
        states.append(average)
    for p, q in zip(states[0].parameters(), states[1].parameters(), strict=True):
        same(p, q)
