"""Correct attention where the values of tensors must not be read: each function takes `x`, [b, l, d]."""

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.masked import masked_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

OPERATORS = []
"""What modes and classes of tensors below were asked to run."""


def attend(q, k, v, mask=None):
    scores = q @ k.mT
    scores = scores * torch.tensor(0.5) / (q.shape[-1] ** 0.5 / 2)
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    attention = scores.softmax(-1)
    attention = attention * torch.ones(k.shape[-2])
    return attention @ v


def attend_causally(q, k, v, scale):
    scores = (q @ k.mT) * scale
    later = torch.ones(q.shape[-2], k.shape[-2]).triu(1) > 0
    attention = scores.masked_fill(later, -1e9).softmax(-1)
    return attention.masked_fill(later, 0.0) @ v


def scale_of(x):
    return torch.tensor(x.shape[-1] ** -0.5)


# Function transforms.


def vmap(x):
    y = torch.vmap(attend)(x, x * 0.5, x + 1)
    return y


def vmap_of_vmap(x):
    stacked = torch.stack([x, x + 1])
    return torch.vmap(torch.vmap(attend))(stacked, stacked, stacked)


def vmap_with_mask(x):
    length = x.shape[1]
    mask = torch.ones(x.shape[0], length, length).triu(1) > 0
    return torch.vmap(attend)(x, x, x, mask)


def vmap_with_a_scale_for_each(x):
    return torch.vmap(attend_causally)(x, x, x, scale_of(x).repeat(x.shape[0]))


def vmap_over_some_arguments(x):
    return torch.vmap(attend_causally, in_dims=(0, None, 0, None))(x, x[0], x, scale_of(x))


def vmap_with_dropout(x):
    def each(row):
        y = F.dropout(attend(row, row, row), 0.5)
        return y

    return torch.vmap(each, randomness="different")(x)


def vmap_of_code_that_tries_to_read(x):
    def each(row):
        try:
            return row * row.sum().item()
        except RuntimeError:
            return row

    return torch.vmap(each)(x)


def grad(x):
    def loss(a):
        y = attend(a, a * 0.5, a + 1)
        return y.sum()

    return torch.func.grad(loss)(x)


def grad_of_a_scale(x):
    def loss(scale):
        y = attend_causally(x, x, x, scale)
        return y.sum()

    return torch.func.grad(loss)(scale_of(x))


def grad_of_each_example(x):
    def loss(row):
        y = attend(row, row, row)
        return y.sum()

    return torch.vmap(torch.func.grad(loss))(x)


def hessian(x):
    def loss(a):
        y = attend(a, a, a)
        return y.sum()

    return torch.func.hessian(loss)(x[0])


def jacrev(x):
    return torch.func.jacrev(lambda a: attend(a, a, a))(x[0])


def jacfwd(x):
    return torch.func.jacfwd(lambda a: attend(a, a, a))(x[0])


def jvp(x):
    y, tangent = torch.func.jvp(lambda a: attend(a, a, a), (x,), (torch.ones_like(x),))
    return y + tangent


def vjp(x):
    y, pullback = torch.func.vjp(lambda a: attend(a, a, a), x)
    return pullback(y)[0]


def linearize(x):
    y, pushforward = torch.func.linearize(lambda a: attend(a, a, a), x)
    return pushforward(y)


def functionalize(x):
    def in_place(a):
        scores = a @ a.mT
        scores.mul_(scale_of(a))
        scores.masked_fill_(scores < -100, -1e9)
        attention = scores.softmax(-1)
        return attention @ a

    return torch.func.functionalize(in_place)(x)


def stacked_models(x):
    models = [nn.Linear(x.shape[-1], x.shape[-1]) for _ in range(3)]
    weights, buffers = torch.func.stack_module_state(models)

    def call(weights, buffers, x):
        y = torch.func.functional_call(models[0], (weights, buffers), (x,))
        return attend(y, y, y)

    return torch.vmap(call, in_dims=(0, 0, None))(weights, buffers, x)


# Gradients.


def backward(x):
    leaf = x.detach().requires_grad_()
    y = attend(leaf, leaf * 0.5, leaf + 1)
    y.sum().backward()
    return leaf.grad


def backward_of_a_scale(x):
    scale = nn.Parameter(scale_of(x))
    y = attend_causally(x, x, x, scale)
    y.sum().backward()
    return scale.grad


def backward_checkpointed(x):
    leaf = x.detach().requires_grad_()
    y = checkpoint(attend, leaf, leaf, leaf, use_reentrant=False)
    y.sum().backward()
    return leaf.grad


def backward_with_hooks(x):
    leaf, saved = x.detach().requires_grad_(), []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = attend(leaf, leaf, leaf)
    y.sum().backward()
    return leaf.grad * len(saved)


def jacobian(x):
    return torch.autograd.functional.jacobian(lambda a: attend(a, a, a), x[0], vectorize=True)


def forward_mode(x):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        y = forward_ad.unpack_dual(attend(dual, dual, dual))
        return y.primal + y.tangent


def inference_mode(x):
    with torch.inference_mode():
        mine = nn.Parameter(x * 1)
        y = attend(mine, mine, mine)
        mine.mul_(2)
        z = attend_causally(mine, mine, mine, scale_of(mine))
    return y.clone() + z.clone()


def anomaly_detection(x):
    with torch.autograd.detect_anomaly(check_nan=True):
        return backward(x)


def versions(x):
    y = x * 2
    y.add_(1)
    z = attend(y, y, y)
    return z * (1 + y._version + z._version)


# Tensors without values, and torch's own tracers.


def fake(x):
    with FakeTensorMode() as mode:
        there = mode.from_tensor(x)
        y = attend_causally(there, there, there, scale_of(there))
    return x * y.shape[-1]


def fake_with_symbolic_sizes(x):
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env) as mode:
        there = mode.from_tensor(x)
        y = attend(there, there, there)
    return x * int(y.shape[-1]) + len(env.guards)


def fake_with_unknown_sizes(x):
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        there = mode.from_tensor(x).flatten()
        some = there[there > 0]
        y = torch.outer(some, some).softmax(-1)
    return x * y.dim()


def meta(x):
    there = x.to("meta")
    y = torch.softmax(there @ there.mT, -1) @ there
    return x * y.shape[-1]


def zero_tensor(x):
    zeros = torch._efficientzerotensor(x.shape)
    y = x + zeros
    z = zeros.softmax(-1)
    return y + z


def _graphed(x, mode):
    graph = proxy_tensor.make_fx(lambda a, s: attend_causally(a, a, a, s), tracing_mode=mode)
    traced = graph(x, scale_of(x))
    return traced(x, scale_of(x)) * len(list(traced.graph.nodes))


def make_fx(x):
    return _graphed(x, "real")


def make_fx_with_fake_tensors(x):
    return _graphed(x, "fake")


def make_fx_with_symbolic_sizes(x):
    return _graphed(x, "symbolic")


class Attention(nn.Module):
    def forward(self, x):
        y = attend(x, x, x)
        return y


def export(x):
    program = torch.export.export(Attention(), (x,))
    return program.module()(x) * len(list(program.graph.nodes))


def export_with_any_batch(x):
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Attention(), (x,), strict=False, dynamic_shapes=({0: batch},))
    return program.module()(x) * len(list(program.graph.nodes)) + len(program.range_constraints)


def symbolic_trace(x):
    traced = torch.fx.symbolic_trace(lambda a: (a @ a.mT).softmax(-1) @ a)
    return traced(x) * len(list(traced.graph.nodes))


def jit_trace(x):
    traced = torch.jit.trace(lambda a: (a @ a.mT / a.shape[-1] ** 0.5).softmax(-1) @ a, (x,))
    return traced(x) * len(list(traced.graph.nodes()))


# Classes of tensors, layouts and modes.


class Wrapper(torch.Tensor):
    """Computes with a tensor that it contains, as distributed tensors do, and refuses to be read."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        OPERATORS.append(func)
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.isnan.default):
            raise NotImplementedError("its values are elsewhere")
        args, kwargs = tree_map_only(Wrapper, lambda each: each.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapper, func(*args, **kwargs))


def wrapper(x):
    OPERATORS.clear()
    a = Wrapper(x)
    y = attend_causally(a, a, a, Wrapper(scale_of(x)))
    return y.inner * len(OPERATORS)


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        OPERATORS.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def logged_functions(x):
    OPERATORS.clear()
    a = x.as_subclass(Logged)
    y = attend(a, a, a)
    return y.as_subclass(torch.Tensor) * len(OPERATORS)


class Refusing(TorchDispatchMode):
    """Counts operators, and lets none read a value."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        OPERATORS.append(func)
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.amax.default):
            raise RuntimeError("a value is read")
        return func(*args, **(kwargs or {}))


def dispatch_mode(x):
    OPERATORS.clear()
    with Refusing():
        y = attend_causally(x, x, x, scale_of(x))
    return y * len(OPERATORS)


class CountedFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        OPERATORS.append(func)
        return func(*args, **(kwargs or {}))


def function_mode(x):
    OPERATORS.clear()
    with CountedFunctions():
        y = attend_causally(x, x, x, scale_of(x))
    return y * len(OPERATORS)


def masked(x):
    some = masked_tensor(x, x > x.amin(-1, keepdim=True))
    attention = torch.softmax(some * 2, -1)
    y = attention * 0.5
    return y.get_data()


def jagged(x):
    rows = torch.nested.nested_tensor([x[0], x[0][:2]], layout=torch.jagged)
    heads = (rows * 2).unflatten(-1, [2, -1]).transpose(1, 2)
    y = F.scaled_dot_product_attention(heads, heads, heads)
    z = y.transpose(1, 2).flatten(-2)
    return z.values()


def nested(x):
    rows = torch.nested.nested_tensor([x[0], x[0][:2]])
    doubled = rows * 2
    padded = torch.nested.to_padded_tensor(doubled, 0.0)
    return padded.softmax(-1)


def quantized(x):
    whole = torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
    row = whole[0]
    values = row.dequantize()
    return attend(values, values, values)


def sparse(x):
    some = (x[0] * (x[0] > 0.3)).to_sparse()
    half = some * 0.5
    y = torch.sparse.mm(half, x[0].mT)
    attention = torch.sparse.softmax(some, 1)
    return y + attention.to_dense() @ x[0].mT


def sparse_rows(x):
    some = (x[0] * (x[0] > 0.3)).to_sparse_csr()
    half = some * 0.5
    y = half @ x[0].mT
    return y


def opaque(x):
    blocked = x[0].to_mkldnn()
    doubled = blocked * 2
    return doubled.to_dense()


def freed(x):
    y = x * 2
    z = y + 1
    y.untyped_storage().resize_(0)
    gone = y.view(-1)
    return z * gone.numel()


def copy_on_write(x):
    y = torch._lazy_clone(x)
    z = y.softmax(-1)
    y.mul_(2)
    return z + y


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = attend_causally(x, x, x, scale_of(x))
    return y


def compiled(x):
    function = torch.compile(lambda a: (a @ a.mT / a.shape[-1] ** 0.5).softmax(-1) @ a, backend="eager")
    y = function(x)
    return y
