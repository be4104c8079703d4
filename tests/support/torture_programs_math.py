"""More programs for memory pressure: functions instead of models. See torture_programs.py."""

import torch
import torch.nn.functional as F
from torch import nn

from support.torture_programs import STEPS, fit, mse, net, pairs, program


def descend(put, leaf, value, steps=STEPS):
    """Gradient descent on one leaf; values, gradients and the leaf itself."""
    w, found = put(leaf).requires_grad_(), []
    for _ in range(steps):
        out = value(w)
        out.backward()
        found += [out.detach(), w.grad]
        with torch.no_grad():
            w -= 0.001 * w.grad
        w.grad = None
    return [*found, w]


@program
def views_written_in_place(put):
    def loss(model, x, y):
        h = model[0](x)
        h[:, ::2].mul_(2)
        h.view(-1)[3:9].add_(1)
        h.t()[1].relu_()
        h = h.clone()
        h[0].zero_()
        h.masked_fill_(h > 3, 0.5)
        t = torch.cat([z.exp() for z in h.split(8, 1)], 1)
        t[:, 0] = x[:, 0]
        k = torch.stack(t.chunk(2)).unbind(0)
        z = model[5](k[0] + k[1])
        z.index_add_(0, put(torch.tensor([0, 1])), y[:2])
        z[put(torch.tensor([1, 2]))] += 1
        return (z.std(0) + z.norm(dim=1).mean() + z.var()).mean() * y.std()

    return fit(put, net(), pairs, loss, lambda p: torch.optim.SGD(p, 1e-3))


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        out = torch.tanh(x @ w)
        ctx.save_for_backward(x, w, out)
        ctx.kept = x.exp()
        return out

    @staticmethod
    def backward(ctx, g):
        x, w, out = ctx.saved_tensors
        g = g * (1 - out * out) + 0 * ctx.kept.sum()
        return g @ w.t(), x.t() @ g


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return 2 * g + 0 * ctx.saved_tensors[0]


@program
def custom_functions(put):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(16, 8))

        def forward(self, x):
            return InPlace.apply(Own.apply(x, self.w) * 1)

    return fit(put, Model(), pairs)


@program
def functional_calls(put):
    template = put(net())

    def loss(model, x, y):
        named = dict(model.named_parameters())
        return F.mse_loss(torch.func.functional_call(template, named, (x,)), y)

    return fit(put, net(), pairs, loss)


@program
def function_transforms(put):
    model = put(net())
    weights = {k: put(v.detach().clone()) for k, v in model.named_parameters()}
    found = []

    def loss(weights, x, y):
        return F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)

    for _ in range(2):
        x, y = map(put, pairs())
        whole = torch.func.grad(loss)(weights, x, y)
        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, y)
        found += [*whole.values(), *each.values()]
        weights = {k: v - 0.01 * whole[k] - 0.001 * each[k].mean(0) for k, v in weights.items()}
    hessian = torch.func.hessian(lambda t: t.sin().prod())(put(torch.randn(3)))
    return [*found, hessian]


@program
def sparse(put):
    found = []
    dense = torch.randn(12, 12)
    csr = put((dense * (dense > 0.5)).to_sparse_csr())
    coo = put((dense * (dense < 0.1)).to_sparse_coo())

    def value(w):
        found.append((csr @ w).detach())
        return ((csr @ w) * torch.sparse.mm(coo.coalesce() * 2, w)).sum()

    return [*descend(put, torch.randn(12, 6), value), *found, csr.to_dense(), coo.to_dense()]


@program
def sparse_embedding(put):
    table = nn.Embedding(20, 4, sparse=True)
    optimizer = lambda p: torch.optim.SparseAdam(p, 0.1)  # noqa: E731
    batch = lambda: (torch.randint(0, 20, (6,)),)  # noqa: E731
    found = fit(put, table, batch, lambda m, i: m(i).square().sum(), optimizer)
    return [t.to_dense() if t.is_sparse else t for t in found]


@program
def complex_numbers(put):
    def value(w):
        f = torch.fft.fft(put(torch.randn(4, 16))) * w
        z = f.conj().exp().abs()
        out = torch.fft.ifft(f.conj() * z).real.square().mean()
        return out + torch.view_as_real(w).abs().sum() + w.neg().conj().imag.exp().sum()

    return descend(put, torch.randn(16, dtype=torch.cfloat), value)


@program
def linear_algebra(put):
    eye = put(torch.eye(8))

    def value(w):
        spd = w @ w.t() + 9 * eye
        out = w.std(0) + w.norm(dim=1) + w.exp().sum(0) + w.abs().sqrt().prod(0)
        out = out + w.cumsum(0).max(0).values + torch.linalg.norm(w) + w.logsumexp(0)
        out = out + torch.linalg.qr(w)[1].sum() + torch.linalg.svdvals(w)
        out = out + torch.linalg.inv(w + 9 * eye).sum() + torch.cdist(w, w).sum(0)
        out = out + torch.linalg.solve(spd, w[0]) + torch.linalg.cholesky(spd).sum(0)
        return (out + torch.linalg.eigh(spd)[0] + torch.logdet(spd)).sum()

    return descend(put, torch.randn(8, 8), value)


@program
def sorting_and_searching(put):
    def value(w):
        order = w.argsort(dim=1, stable=True)
        best, where = w.topk(3, 1)
        picked = w.gather(1, order)[:, :4] * best.sum() + w[where[:, 0]].mean()
        bins = torch.bucketize(w.detach(), put(torch.linspace(-2, 2, 5)))
        return (
            picked.sum()
            + w[bins == 2].sum()
            + w.detach().unique().sum()
            + w.kthvalue(2).values.sum()
        )

    return descend(put, torch.randn(8, 8), value)


@program
def connectionist_loss(put):
    """Its kernels read raw pointers between operators."""
    lengths = torch.tensor([10, 9]), torch.tensor([4, 3])
    targets = put(torch.randint(1, 6, (2, 4)))

    def value(w):
        return F.ctc_loss(w.log_softmax(-1), targets, *lengths)

    return descend(put, torch.randn(10, 2, 6), value)


@program
def hooks(put):
    seen = []

    def build():
        model = net()
        model[2].register_forward_hook(lambda m, i, o: seen.append(o.detach().sum()) or o * 2)
        model[4].register_full_backward_hook(lambda m, i, o: (i[0] * 0.5,))
        return model

    def loss(model, x, y):
        model[0].weight.register_hook(lambda g: g + 0.01)
        return mse(model, x, y)

    return fit(put, build(), pairs, loss) + seen


@program
def saved_tensor_hooks(put):
    def loss(model, x, y):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 1):
            return mse(model, x, y)

    return fit(put, net(), pairs, loss)
