"""The steps inside a call of torch's own attention, computed beside it.

torch's function runs as always, and what it returns is used. Its steps are computed from its arguments:
on meta, where only shapes count; or with values, if these are requested. Then the result is compared
with what torch's function has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from types import FunctionType
from typing import Any

import torch
from torch.nn.functional import gelu, layer_norm, linear, relu

from attnscope.base.units import number_text, shape_text
from attnscope.observe.instrument import written_out
from attnscope.observe.instrument.code_swap import Relay, with_relay
from attnscope.observe.instrument.rewrite import Rewritten, rewrite
from attnscope.observe.operator_names import FLEX, MHA
from attnscope.observe.operators.tape import mapped, tensors_in
from attnscope.observe.torch_internals.dispatch import is_dense, unseen
from attnscope.observe.torch_internals.whole_calls import WholeCall

ROUNDING = 64
"""By how much the result may differ from torch's: the resolution of its dtype, so many times."""


class ComputedOtherwiseError(Exception):
    """The steps lead to something else than what torch's function has returned."""


def written() -> Rewritten:
    """Return the steps of all functions, with recording calls."""
    return rewrite([written_out.__file__])


def functions_for(relay: Relay) -> dict[str, FunctionType]:
    """Return the functions that compute steps, and report them to a relay."""
    scope: dict[str, Any] = {"__name__": written_out.__name__}
    exec(with_relay(relay, written().modules[written_out.__file__]), scope)
    return scope


Tensors = tuple[torch.Tensor, ...]


@dataclass
class OpenedCall:
    """A call of torch's own attention, and what its steps are computed from."""

    call: WholeCall
    has_values: bool
    #: what stands for each tensor, by the tensor's `id`; on meta, unless there are values
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    random_state: list[torch.Tensor] = field(default_factory=list)

    def run(self) -> Any:
        """Run torch's function; note which random numbers it is about to draw."""
        if self.has_values and self.dropout:
            self.random_state = [torch.get_rng_state()]
            if torch.cuda.is_initialized():
                self.random_state.append(torch.cuda.get_rng_state())
        return self.call.run()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of torch's function, by name."""
        function = _NATIVE.get(self.call.name) or getattr(written_out, self.call.name)
        before = (None,) if self.is_native else ()
        bound = signature(function).bind(*before, *self.call.args, **self.call.kwargs)
        bound.apply_defaults()
        return {name: each for name, each in bound.arguments.items() if name != "forward"}

    @property
    def dropout(self) -> float:
        """The fraction of weights that is dropped."""
        arguments = self.arguments
        return float(arguments.get("dropout_p", 0.0)) if arguments.get("training", True) else 0.0

    @property
    def is_native(self) -> bool:
        """Whether the call is that of an operator which has one kernel."""
        return self.call.name in _NATIVE

    @property
    def is_seen_whole(self) -> bool:
        """Whether modes see the call as a single operator, and none of those that it runs."""
        return self.is_native or self.call.name == FLEX

    @property
    def ends_with_attention(self) -> bool:
        """Whether the last step is what the function returns first."""
        return self.call.name != "transformer_encoder_layer_fwd"

    def outputs(self, out: Any) -> Tensors:
        """Return the tensors that torch's function has returned, batch first."""
        first, *others = tensors_in(out)
        is_batch_second = self.call.name == MHA and first.dim() == 3
        with unseen():
            return (first.detach().transpose(0, 1) if is_batch_second else first, *others)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors among the arguments."""
        return tensors_of(self.call)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands for a tensor of the call."""
        if id(tensor) not in self.copies:
            with unseen():
                copy = tensor.detach()
                if not self.has_values:
                    layout = tensor.shape, tensor.stride()
                    copy = torch.empty_strided(*layout, dtype=tensor.dtype, device="meta")
            self.copies[id(tensor)] = copy, tensor
        return self.copies[id(tensor)][0]

    def compute(self, functions: dict[str, FunctionType]) -> Tensors:
        """Compute the steps, and return what torch's function does, as far as it concerns attention."""
        arguments = mapped(self.arguments, torch.Tensor, self.copy)
        with self._same_random_numbers():
            if self.is_native:
                return _NATIVE[self.call.name](functions[MHA], **arguments)
            return tuple(tensors_in(functions[self.call.name](**arguments)))

    @contextmanager
    def _same_random_numbers(self) -> Iterator[None]:
        """Draw the random numbers that torch's function drew."""
        if not self.random_state:
            yield
            return
        on_cpu, *on_cuda = self.random_state
        with torch.random.fork_rng([torch.cuda.current_device()] if on_cuda else []):
            torch.set_rng_state(on_cpu)
            for state in on_cuda:
                torch.cuda.set_rng_state(state)
            yield

    def check(self, computed: torch.Tensor, returned: torch.Tensor) -> None:
        """Compare the result of the steps with what torch's function has returned.

        Raises:
            ComputedOtherwiseError: they differ by more than rounding.
        """
        if computed.is_meta or returned.is_meta:
            return
        with unseen():
            one, other = computed.double(), returned.detach().double()
            difference = (one - other).abs().nan_to_num(0.0).amax() if one.numel() else torch.zeros(())
            largest = other.nan_to_num(0.0, 0.0, 0.0).abs().amax() if one.numel() else torch.zeros(())
            bound = ROUNDING * torch.finfo(returned.dtype).eps * max(float(largest), 1.0)
            same_nan = bool((one.isnan() == other.isnan()).all())
        if float(difference) > bound or not same_nan:
            raise ComputedOtherwiseError(f"they differ from its output by {float(difference):.2g}")

    def in_words(self) -> str:
        """Describe the call: the shapes of Q, K, V and the mask, and the scale."""
        arguments = self.arguments
        tensors = {letter: arguments.get(name) for letter, name in _LETTERS.items()}
        parts = [
            f"{letter} {shape_text(tuple(each.shape))}"
            for letter, each in tensors.items()
            if each is not None
        ]
        parts += ["causal"] if arguments.get("is_causal") else []
        scale = arguments.get("scale")
        usual = f"1/√{arguments['query'].shape[-1]}"
        parts.append(f"scale {usual if scale is None else number_text(float(scale))}")
        parts += [f"dropout {self.dropout:g}"] if self.dropout else []
        return ", ".join(parts)


_LETTERS = {"Q": "query", "K": "key", "V": "value", "mask": "attn_mask"}


def has_autocast(call: WholeCall) -> bool:
    """Check whether torch chooses the dtypes of operators on the tensors of a call."""
    devices = {each.device.type for each in tensors_of(call)}
    return any(device != "meta" and torch.is_autocast_enabled(device) for device in devices)


def is_open(call: WholeCall) -> bool:
    """Check whether all tensors of a call are ordinary ones; nested ones, for example, are not."""
    return all(map(is_dense, tensors_of(call)))


def why_closed(call: WholeCall) -> str:
    """Say why the steps inside a call are not computed, whose tensors are not all ordinary."""
    if any(each.is_nested for each in tensors_of(call)):
        return "its tensors are nested; nn.TransformerEncoder nests none with enable_nested_tensor=False"
    return "one of its tensors is sparse, quantized, or of a class of its own"


def tensors_of(call: WholeCall) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments of a call."""
    return tensors_in((call.args, call.kwargs))


# Operators that compute multi-head attention in one kernel.


def _native_multi_head_attention(
    forward: Callable[..., Tensors],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Tensors:
    """Compute what the operator of this name does; its mask is of a type.

    Source: `nn.MultiheadAttention.merge_masks`: 0 is a mask of queries and keys, 1 one of keys, 2 both,
    for each sequence and head.
    """
    of_pairs = None if mask is None or mask_type == 1 else mask
    if of_pairs is not None and mask_type == 2:
        of_pairs = of_pairs.flatten(0, 1)
    inputs = (each.transpose(0, 1) for each in (query, key, value))
    weights = (qkv_weight, qkv_bias, None, None, False, 0.0, proj_weight, proj_bias)
    masks = {"key_padding_mask": mask if mask_type == 1 else None, "attn_mask": of_pairs}
    return forward(*inputs, embed_dim, num_head, *weights, training=False, **masks)


def _transformer_encoder_layer_fwd(
    forward: Callable[..., Tensors],
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Tensors:
    """Compute what the operator of this name does."""

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, x.shape[-1:], weight, bias, eps)

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    sizes, weights = (embed_dim, num_heads), (qkv_weight, qkv_bias, proj_weight, proj_bias)
    attended, _ = _native_multi_head_attention(
        forward, x, x, x, *sizes, *weights, mask, mask_type=mask_type
    )
    x = src + attended
    x = x if norm_first else norm(x, norm_weight_1, norm_bias_1)
    inner = linear(norm(x, norm_weight_2, norm_bias_2) if norm_first else x, ffn_weight_1, ffn_bias_1)
    x = x + linear((gelu if use_gelu else relu)(inner), ffn_weight_2, ffn_bias_2)
    return (x if norm_first else norm(x, norm_weight_2, norm_bias_2),)


_NATIVE: dict[str, Callable[..., Tensors]] = {
    "native_multi_head_attention": _native_multi_head_attention,
    "transformer_encoder_layer_fwd": _transformer_encoder_layer_fwd,
}
