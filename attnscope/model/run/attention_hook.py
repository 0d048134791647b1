"""Hook a model's attention, and capture its inputs: the true queries, keys, values, mask and scale.

transformers' models call attention through a registry (`AttentionInterface`) by a name, `sdpa` or
`eager`. While a model is observed, these names lead to a function that calls the model's own attention
with unchanged arguments, and passes them to a callback. The names stay the same, so masks are built as
usual, and a model that branches on the name of its attention takes its usual path.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Returned = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of one layer's attention."""

    path: str
    #: `n_batch n_head n_Q d_K`, after rotary position embedding, if any.
    query: torch.Tensor
    #: `n_batch n_kv_head n_K d_K`.
    key: torch.Tensor
    #: `n_batch n_kv_head n_K d_V`.
    value: torch.Tensor
    #: broadcasts to `n_batch n_head n_Q n_K`: True where a query may attend, or added to the scores.
    #: None: nothing is masked.
    mask: torch.Tensor | None
    #: whether attention is causal if there is no mask; queries and keys begin at the same position.
    causal: bool
    scale: float
    softcap: float | None
    #: added to the scores; broadcasts to `n_batch n_head n_Q n_K`.
    position_bias: torch.Tensor | None
    #: an additional score for each head, `n_head`, or for each query, `n_batch n_head n_Q 1`.
    sinks: torch.Tensor | None
    #: whether keys and queries come from different sequences.
    cross: bool

    @property
    def n_head(self) -> int:
        """The number of query heads."""
        return self.query.shape[1]

    @property
    def n_kv_head(self) -> int:
        """The number of key/value heads."""
        return self.key.shape[1]

    def added_mask(self) -> torch.Tensor | None:
        """Return the mask that eager attention adds: the lowest number of its dtype where masked."""
        import torch

        mask, like = self.mask, self.query
        if mask is None and self.causal:
            n_Q, n_K = like.shape[-2], self.key.shape[-2]
            mask = torch.ones(n_Q, n_K, dtype=torch.bool, device=like.device).tril()
        if mask is None or mask.dtype != torch.bool:
            return mask
        lowest = torch.finfo(like.dtype).min
        return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill(~mask, lowest)


@dataclass(frozen=True)
class AttentionCall(AttentionInputs):
    """The inputs and outputs of one layer's attention."""

    #: the output of the model's own attention, `n_batch n_Q n_head d_V`.
    output: torch.Tensor
    #: the weights that eager attention returns in addition, `n_batch n_head n_Q n_K`.
    weights: torch.Tensor | None

    def arguments(self, heads: list[int] | None = None) -> dict[str, Any]:
        """Return the arguments for `attnscope.attention.observed`.

        They are at least float32: a model's own kernels round less than its dtype would.

        Args:
            heads: only these query heads, each with its own copy of the key/value head that it reads.
                None: all query heads, with key/value heads as they are.
        """
        import torch

        dtype = torch.promote_types(self.query.dtype, torch.float32)
        call = self if heads is None else self.of_heads(heads)
        return {
            "Q": call.query.to(dtype),
            "K": call.key.to(dtype),
            "V": call.value.to(dtype),
            "mask": call.added_mask(),
            "position_bias": call.position_bias,
            "sinks": call.sinks,
            "scale": self.scale,
            "softcap": self.softcap,
        }

    def of_heads(self, heads: list[int]) -> AttentionCall:
        """Return the call of some query heads, without the weights that eager attention returned."""
        kv_heads = [head // (self.n_head // self.n_kv_head) for head in heads]

        def part(x: torch.Tensor | None) -> torch.Tensor | None:
            """Select the same heads of a mask or a bias, unless all heads share one."""
            return x if x is None or x.dim() < 3 or x.shape[-3] == 1 else x[..., heads, :, :]

        sinks = self.sinks
        return replace(
            self,
            query=self.query[:, heads],
            key=self.key[:, kv_heads],
            value=self.value[:, kv_heads],
            output=self.output[:, :, heads],
            mask=part(self.mask),
            position_bias=part(self.position_bias),
            sinks=sinks[heads] if sinks is not None and sinks.dim() == 1 else part(sinks),
            weights=None,
        )


@dataclass(frozen=True)
class KernelCall:
    """One call of attention through transformers' registry, with its arguments as they are."""

    name: str
    path: str
    module: Any
    #: query, key, value: `n_batch n_head n_Q d_K`, `n_batch n_kv_head n_K d_K`, `n_batch n_kv_head n_K
    #: d_V`.
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    #: what the model made for this kernel: a tensor, a `BlockMask`, or None.
    mask: Any
    #: the other arguments: `is_causal`, `sliding_window`, `position_ids`, …
    options: dict[str, Any]
    function: Callable[..., Returned]

    @property
    def is_causal(self) -> bool:
        """Whether attention is causal if there is no mask, according to the call or else the module."""
        causal = self.options.get("is_causal")
        return bool(getattr(self.module, "is_causal", True) if causal is None else causal)

    def compute(self) -> Returned:
        """Call the kernel."""
        return self.function(self.module, self.query, self.key, self.value, self.mask, **self.options)


@contextmanager
def observing(
    model: torch.nn.Module,
    see: Callable[[AttentionCall], None] | Callable[[AttentionCall], torch.Tensor | None],
) -> Iterator[None]:
    """Call a function for every attention that a model computes through the registry.

    Args:
        see: called with each layer's inputs and outputs, in the order in which they run. Its exceptions
            propagate; if it returns a tensor, that replaces the output of the attention.
    """

    def observe(kernel: KernelCall, failures: list[Exception]) -> Returned:
        output, weights = kernel.compute()
        call = AttentionCall(**vars(attention_inputs(kernel)), output=output, weights=weights)
        replacement = _called(see, call, failures)
        return (output if replacement is None else replacement), weights

    with _replaced(model, observe):
        yield


@contextmanager
def attending(
    model: torch.nn.Module, attend: Callable[[AttentionInputs], torch.Tensor | None]
) -> Iterator[None]:
    """Replace every attention that a model computes through the registry by a function.

    Args:
        attend: returns the weighted values, `n_batch n_Q n_head d_V`; or None, to call the model's own
            attention. Its exceptions propagate.
    """

    def replace(kernel: KernelCall, failures: list[Exception]) -> Returned:
        collected = _called(attend, attention_inputs(kernel), failures)
        return kernel.compute() if collected is None else (collected.to(kernel.value.dtype), None)

    with _replaced(model, replace):
        yield


def _called(function: Callable[[Any], Any], argument: Any, failures: list[Exception]) -> Any:
    """Call a function, and record its exception."""
    try:
        return function(argument)
    except Exception as error:
        failures.append(error)
        raise


@contextmanager
def _replaced(
    model: torch.nn.Module, call: Callable[[KernelCall, list[Exception]], Returned]
) -> Iterator[None]:
    """Replace a model's attention; raise a recorded exception, even if the model made it another.

    Args:
        call: returns what the kernel would, and records exceptions of callbacks in a list.
    """
    failures: list[Exception] = []
    try:
        with intercepted(model, lambda kernel: call(kernel, failures), kernels=("sdpa", "eager")):
            yield
    except Exception:
        if failures:
            raise failures[0] from None
        raise


@contextmanager
def intercepted(
    model: torch.nn.Module,
    call: Callable[[KernelCall], Returned],
    kernels: Collection[str] | None = None,
) -> Iterator[None]:
    """Replace a model's attention by a function of the arguments with which its kernel is called.

    The registry is global to the process, so one model is observed at a time.

    Args:
        call: returns what the kernel would: the weighted values, `n_batch n_Q n_head d_V`, and weights
            or None.
        kernels: the names in the registry that are replaced; None: all.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    names = {*ALL_ATTENTION_FUNCTIONS, "eager"} if kernels is None else {*kernels}
    originals = {name: ALL_ATTENTION_FUNCTIONS.get(name) for name in names}
    own_entries = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    paths = {id(module): path for path, module in model.named_modules()}

    def hooked(name: str) -> Callable[..., Returned]:
        def attend(
            module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
        ) -> Returned:
            function = originals[name] or _eager_of(module)
            path = paths.get(id(module))
            if path is None:
                return function(module, query, key, value, attention_mask, **options)
            return call(
                KernelCall(name, path, module, query, key, value, attention_mask, options, function)
            )

        return attend

    try:
        for name in names:
            ALL_ATTENTION_FUNCTIONS[name] = hooked(name)
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS._local_mapping = own_entries


def _eager_of(module: torch.nn.Module) -> Callable[..., Returned]:
    """Return the eager attention of the file that defines a module's class."""
    file = vars(sys.modules[type(module).__module__])
    names = [name for name in file if name.endswith("eager_attention_forward")]
    return file[min(names, key=len)]


def attention_inputs(kernel: KernelCall) -> AttentionInputs:
    """Convert the arguments of transformers' attention functions."""
    query, mask, options = kernel.query, kernel.mask, kernel.options
    scale, sinks = options.get("scaling"), options.get("s_aux", options.get("sinks"))
    if sinks is not None and sinks.numel() == query.shape[1]:
        sinks = sinks.flatten()
    fused = kernel.name == "sdpa"
    return AttentionInputs(
        path=kernel.path,
        query=query,
        key=kernel.key,
        value=kernel.value,
        mask=mask,
        causal=bool(fused and mask is None and kernel.is_causal and query.shape[-2] > 1),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        softcap=options.get("softcap"),
        position_bias=options.get("position_bias"),
        sinks=sinks,
        cross=is_cross(kernel.path, kernel.module),
    )


def is_cross(path: str, module: Any) -> bool:
    """Check by names whether a module's keys and queries come from different sequences."""
    match = re.search(r"cross|encoder_attn|encdecattention", path.lower())
    return bool(match) or getattr(module, "is_cross_attention", False)
