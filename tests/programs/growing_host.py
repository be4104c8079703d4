"""Programs on one device of 1 MiB and a host of 16 MiB that keep more and more, or do not.

`python growing_host.py NAME` prints, as JSON, what was said of growth: the line of the program that
the warning names, what it says, how many steps had run, and how full the host was then.
"""

import json
import logging
import sys
import warnings
from collections import deque

import torch
from torch import nn

import managed
from managed import _C, ManagedModule, ManagedTensor

said: list[list[object]] = []
logged: list[str] = []
done = [0]


class Log(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())


def note(message, category, filename, lineno, file=None, line=None):
    assert category is RuntimeWarning, message
    used = _C.host_memory()["used"]
    said.append([filename, lineno, str(message), done[0], used])


def model(width=128, layers=2):
    made = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    return ManagedModule.from_module(made).to("sim:0")


def here(*shape):
    return torch.randn(shape).as_subclass(ManagedTensor).to("sim:0")


def steps(n):
    for i in range(n):
        done[0] = i + 1
        yield i


def sum_of_losses():
    net, x, total = model(), here(128, 128), 0
    for _ in steps(500):
        total = total + net(x).square().mean()  # the line
        if said:
            break


def list_of_graphs_in_training():
    net, x, kept = model(), here(128, 128), []
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    for _ in steps(200):
        loss = net(x).square().mean()  # the line
        loss.backward(retain_graph=True)
        kept.append(loss)
        optimizer.step()
        optimizer.zero_grad()
        if said:
            break


def backward_without_an_optimizer():
    net, x, kept = model(), here(128, 128), []
    for _ in steps(200):
        loss = net(x).square().mean()  # the line
        loss.backward(retain_graph=True)
        kept.append(loss)
        if said:
            break


def evaluation_after_training():
    net, x, total = model(), here(128, 128), 0
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    for _ in range(5):
        net(x).square().mean().backward()
        optimizer.step()
    for _ in steps(500):
        total = total + net(x).square().mean()  # the line
        if said:
            break


def accumulated_gradients():
    net, x = model(192), here(128, 192)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in steps(4):
        for _ in range(16):
            net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def long_forward_passes():
    """A cell that is called 100 times before each backward pass."""
    cell = model(64, 1)
    for _ in steps(3):
        h = here(64, 64)
        for _ in range(100):
            h = cell(h).tanh()
        h.sum().backward()


def results_in_a_list_of_constant_size():
    net, x, kept = model(), here(128, 128), deque[torch.Tensor](maxlen=40)
    with torch.no_grad():
        for _ in steps(200):
            kept.append(net(x))


def a_cache_that_stops_growing():
    net, x, cache = model(), here(128, 128), dict[int, torch.Tensor]()
    with torch.no_grad():
        for i in steps(100):
            cache[i % 45] = net(x) if i % 45 not in cache else cache[i % 45]
            net(x)


def a_cache_that_is_used():
    """Of 512 bytes a step more in each of 4 layers, as keys and values of generated tokens."""
    net, x = model(), here(16, 128)
    cache: list[torch.Tensor]
    cache = [torch.zeros(512, 128, device="sim:0").as_subclass(ManagedTensor)] * 4
    with torch.no_grad():
        for _ in steps(70):
            y = net(x)
            cache = [torch.cat((c, y[:1])) for c in cache]


def inference_of_a_model_that_does_not_fit():
    net, x = model(192, 8), here(8, 192)
    with torch.no_grad():
        for _ in steps(60):
            net(x)


if __name__ == "__main__":
    warnings.showwarning = note
    warnings.simplefilter("always")
    logging.getLogger("managed").addHandler(Log())
    managed.simulate(devices=1, memory="1MiB", host_memory="16MiB")
    globals()[sys.argv[1]]()
    _C.begin_step()
    spilled = managed.stats()["spill"]
    print(json.dumps({"said": said, "logged": logged, "spilled": spilled}))
