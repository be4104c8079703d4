"""Custom autograd functions that more than one file of tests uses."""

import torch

from support.devices import D2

__all__ = ["Product"]


class Product(torch.autograd.Function):
    """x * y in the newer form of a function; its gradients are on a third device and the host."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(context, inputs, output):
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context, gradient):
        x, y = context.saved_tensors
        return (gradient * y).to(D2), (gradient * x).to("cpu")
