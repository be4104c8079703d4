"""Walks two graphs at once, a plain program's and a managed one's, and says where they differ.

Nodes that managed adds are contracted: what they lead to takes their place. Whoever asks later must
find the graph of the same program on one device.
"""

import torch

OURS = ("ManagedCrossingBackward", "ManagedUseBackward", "ManagedViewBackward")


def contracted(node, nr):
    while node is not None and node.name() in OURS:
        node, nr = node.next_functions[0]
    return node, nr


def _form(node):
    return [(tuple(m.shape), m.dtype) for m in node._input_metadata]


class Walk:
    """`leaves`: pairs of tensors, plain and managed, that answer each other."""

    def __init__(self, leaves):
        self.leaves = [(a, b) for a, b in leaves]
        self.pairs = {}  # plain node: managed node; keeps both alive, so that `is` may be asked
        self.taken = {}
        self.ours = set()

    def difference(self, a, b):
        """Why the graph of tensor `b` is not that of `a`, or None."""
        for what in ("requires_grad", "is_leaf", "output_nr", "retains_grad"):
            if getattr(a, what) != getattr(b, what):
                return f"{what} {getattr(b, what)} instead of {getattr(a, what)}"
        if a._is_view() != b._is_view():
            return f"is a view: {b._is_view()} instead of {a._is_view()}"
        if a.grad_fn is None:
            return None
        return self._nodes((a.grad_fn, a.output_nr), (b.grad_fn, b.output_nr))

    def _nodes(self, a, b):
        todo = [(a, b, "")]
        while todo:
            (a, i), (b, j), path = todo.pop()
            if b is not None and b.name() in OURS:
                self.ours.add(b.name())
            b, j = contracted(b, j)
            if a is None or b is None:
                if a is not b:
                    return f"{path}: {b and b.name()} instead of {a and a.name()}"
                continue
            path = f"{path}/{a.name()}"
            if a.name() != b.name() or i != j:
                return f"{path}: output {j} of {b.name()} instead of {i}"
            if a in self.pairs or b in self.taken:
                if self.pairs.get(a) is not b or self.taken.get(b) is not a:
                    return f"{path}: another node than before"
                continue
            self.pairs[a], self.taken[b] = b, a
            found = self._node(a, b)
            if found:
                return f"{path}: {found}"
            todo += [(x, y, path) for x, y in zip(a.next_functions, b.next_functions, strict=True)]
        return None

    def _node(self, a, b):
        if _form(a) != _form(b):
            return f"metadata {_form(b)} instead of {_form(a)}"
        if len(a.next_functions) != len(b.next_functions):
            return f"{len(b.next_functions)} edges instead of {len(a.next_functions)}"
        if hasattr(a, "variable"):
            for x, y in self.leaves:
                if (a.variable is x) != (b.variable is y):
                    return "another leaf"
        return None


def difference(plain, managed, leaves):
    """Of lists of tensors, in order."""
    walk = Walk(leaves)
    for k, (a, b) in enumerate(zip(plain, managed, strict=True)):
        found = walk.difference(a, b)
        if found:
            return f"[{k}] {found}"
    return None


def tensors(tree):
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
