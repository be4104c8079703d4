"""Measures on the virtual clock the rate of each kind of arithmetic beside what the preset says."""

import torch

import managed

managed.simulate(1, "512MiB", preset="a100-80g-sxm")
rates = torch.sim.get_device_properties(0).rates
n = 512


def time(work):
    torch.sim.synchronize(0)
    begin = torch.sim.virtual_time("cpu")
    work()
    return torch.sim.virtual_time(0) - begin - 7e-6


def expect(kind, numbers, flops, work):
    ratio = flops / time(work) / rates[kind][numbers]
    assert abs(ratio - 1) < 0.02, (kind, numbers, ratio)


for dtype, parts in ((torch.float64, 1), (torch.bfloat16, 1), (torch.complex128, 4)):
    a = torch.ones(4 * n, n, dtype=dtype, device="sim:0")
    numbers = "bfloat16" if dtype == torch.bfloat16 else "float64"
    expect("matrix", numbers, parts * 2 * 16 * n**3, lambda: a @ a.T)  # noqa: B023 # called at once
a = torch.ones(4 * n, n, device="sim:0")
expect("matrix", "float32", 2 * 16 * n**3, lambda: a @ a.T)
torch.set_float32_matmul_precision("high")
expect("matrix", "tf32", 2 * 16 * n**3, lambda: a @ a.T)
torch.set_float32_matmul_precision("highest")

x = torch.ones(4, 64, 64, 64, device="sim:0")
w = torch.ones(64, 64, 3, 3, device="sim:0")
flops = 2 * x.numel() * 64 * 9


def convolve():
    return torch.conv2d(x, w, padding=1)


expect("convolution", "tf32", flops, convolve)
torch.backends.cudnn.conv.fp32_precision = "ieee"
expect("convolution", "float32", flops, convolve)
x, w = x.half(), w.half()
expect("convolution", "float16", flops, convolve)
print(rates["matrix"]["bfloat16"] > 8 * rates["matrix"]["float32"])
