"""Compares a checkpoint's weights, as attnscope reads them, with what the model itself computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.arrays import numbers
from attnscope.checkpoints.find import Checkpoint
from attnscope.checkpoints.indices import enumerated
from attnscope.checkpoints.latent import DOWN_KV, DOWN_Q, NORM_KV, NORM_Q, columns_of
from attnscope.checkpoints.layouts import PARTS, Stack, choose_stack, find_stacks
from attnscope.checkpoints.tensors import Weights, open_weights
from attnscope.errors import ModelError
from attnscope.models.running.attention_hook import Call, Handed, attending, observing
from attnscope.models.running.load import (
    load_config,
    load_model,
    load_tokenizer,
    told_as_the_models_fault,
)
from attnscope.results.common import Check
from attnscope.results.weights import HeadWeights, Latent

if TYPE_CHECKING:
    import torch

TEXTS = ("The cat sat on the mat because it was tired.", "Attention is all you need.")
"""What the model reads while it is compared: two lengths, so that padding is masked."""

MOVED = 1e-6
"""How far a direction is from another at least; in float64 rounding stays far below."""

TOLERANCE = 1e-9
"""Both sides compute in float64, where rounding stays far below, and mistakes far above."""

PLAIN = frozenset("albert bert camembert distilbert electra ernie rembert roberta xlm-roberta".split())
"""The families whose attention is softmax(Q·Kᵀ/√d_head)·V and a mask of padding, as in `mha`: nothing is
added to scores, capped, turned or normalised."""


@dataclass
class LayerRun:
    """What one layer of the model computed.

    Attributes:
        stack: where the layer's modules are in the model, which may name them otherwise than its files.
        modules: of each part, its module.
        inputs, outputs: of each part, what its module was given and what it made of it.
        turn: how often its modules ran before, where layers share them.
        batch: what the model read.
        call: what the layer handed to its attention, and what it got; None: that was not to be seen.
        attention: the layer's maps, where attnscope's own attention is to be compared with them.
        mask: which keys are no padding; None: all.
    """

    stack: Stack
    modules: dict[str, Any]
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]
    turn: int
    batch: dict[str, Any]
    call: Call | None
    attention: torch.Tensor | None
    mask: torch.Tensor | None


def verify_head(checkpoint: Checkpoint, weights_of_head: HeadWeights) -> list[Check]:
    """Run the model in float64, and compare a head's weights with what its layer computes.

    The head's slices, as they were read from the checkpoint's bytes, get the hidden states that
    reach the layer's projections, and are compared with the same head in what the model's own
    modules (transformers, eager) make of them. Where attnscope's `MultiHeadAttention` can express
    the family (`PLAIN`), the whole layer is compared too: its Q, K and V projections, attention
    and output.

    Args:
        checkpoint: the model.
        weights_of_head: the stack, the layer and the head, as `read_head` returned them.

    Raises:
        ModelError: the checkpoint cannot be read, or transformers cannot run it.
    """
    config = load_config(checkpoint)
    plain = (
        weights_of_head.stack == "self"
        and config.model_type in PLAIN
        and not getattr(config, "is_decoder", False)
    )
    model = load_model(checkpoint, config, dtype="float64", attention="eager")
    with suppress(AttributeError, ValueError):  # it has no experts, or is of before they could be chosen
        model.set_experts_implementation("eager")  # the fast ones do not know float64
    seen = _run_model(model, checkpoint, weights_of_head, maps=plain)
    whole = _check_layer(checkpoint, weights_of_head, seen) if plain else []
    slices = _check_slices(weights_of_head, seen)
    return [*whole, *slices, _check_head(model, checkpoint, weights_of_head, seen)]


def _run_model(model: Any, checkpoint: Checkpoint, head: HeadWeights, *, maps: bool) -> LayerRun:
    """What the model computes in one layer's attention; its maps too, if they are needed."""
    import torch

    stack = _stack_of(model, checkpoint, head)
    number, place = stack.numbers[head.layer], stack.place(head.layer)
    # Layers that share their weights are one module, which is called several times.
    turn = sum(stack.numbers[layer] == number for layer in range(head.layer) if layer in stack.numbers)
    modules = {part: model.get_submodule(stack.module(part, head.layer)) for part in PARTS}
    if head.latent is not None:
        shared = {"DKV": DOWN_KV, "g_KV": NORM_KV}
        shared |= {} if head.latent.d_CQ is None else {"DQ": DOWN_Q, "g_Q": NORM_Q}
        modules |= {part: model.get_submodule(f"{place}.{name}") for part, name in shared.items()}
    seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    calls: list[Call] = []

    def look(part: str, inputs: Any, output: Any) -> None:
        # Copies, because some models go on to compute where these are.
        seen[part].append((inputs[0].clone(), _tensor(output).clone()))

    hooks = [
        module.register_forward_hook(lambda _, *values, part=part: look(part, *values))
        for part, module in modules.items()
    ]
    batch, run = _call(model, checkpoint, stack, maps)
    see = observing(model, lambda call: calls.append(call) if _is_at(call, place) else None)
    with torch.no_grad(), told_as_the_models_fault(checkpoint), _float64(), see:
        outputs = run()
    for hook in hooks:
        hook.remove()
    if any(len(seen[part]) <= turn for part in modules):
        raise ModelError(
            f"cannot verify {checkpoint.name}: {type(model).__name__} did not use"
            f" {stack.module('Q', head.layer)} on the inputs that attnscope gave it."
        )
    reached, made = [seen[part][turn][0] for part in PARTS], [seen[part][turn][1] for part in "QKV"]
    if not _finite(reached[:3]) or (_finite(made) and not _finite(reached)):
        whose = stack.place(head.layer)
        raise ModelError(f"cannot verify {checkpoint.name}: {whose} computes what is not finite.")
    mask = batch.get("attention_mask")
    return LayerRun(
        stack=stack,
        modules=modules,
        inputs={part: seen[part][turn][0] for part in modules},
        outputs={part: seen[part][turn][1] for part in modules},
        turn=turn,
        batch=batch,
        call=calls[turn] if len(calls) > turn else None,
        attention=outputs.attentions[head.layer] if maps else None,
        mask=None if mask is None else mask.bool()[:, None, None, :],
    )


def _finite(tensors: list[torch.Tensor]) -> bool:
    return all(bool(each.isfinite().all()) for each in tensors)


def _is_at(handed: Handed, place: str) -> bool:
    """Whether a module attends for the layer whose attention has this name."""
    return handed.path == place or handed.path.startswith(f"{place}.")


def _tensor(output: Any) -> torch.Tensor:
    """What a projection makes; quantised ones return its scale beside it."""
    made: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return made


@contextmanager
def _float64() -> Iterator[None]:
    """Have numbers that a model makes on its way be float64 too, where it names no dtype.

    What it draws, as ViT-MAE draws the patches that it hides, is the same each time.
    """
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_default_dtype(before)


def _check_head(model: Any, checkpoint: Checkpoint, head: HeadWeights, seen: LayerRun) -> Check:
    """Whether what the slices make is one head of the layer's attention, and no other's.

    The model runs again, with the head's columns of Q, K and V set to 0, and of what attention returns,
    the head's part: then the queries of this head alone point elsewhere, the keys and values of the head
    that it reads, and what of W_O's input the slice of W_O is for. Normalisations and rotations on the
    way do not matter, nor does a gate. Where attention is not to be seen, W_O's input tells.
    """
    name = f"the layer's head {head.head}"
    n_head, n_kv_head = head.n_head, head.n_kv_head
    if seen.call is not None and (seen.call.n_head, seen.call.n_kv_head) != (n_head, n_kv_head):
        note = f"the layer attends with {seen.call.n_head} heads and {seen.call.n_kv_head} of keys"
        note += f", and the slices are those of {n_head} and {n_kv_head}"
        return Check(name, None, None, ok=False, note=note)
    output, handed, entered = _run_silenced(model, checkpoint, head, seen)
    moved = _moved_heads(head, seen, handed, entered)
    wrong = [
        f"{what} of heads {enumerated(map(str, sorted(heads)))}" if heads else f"no {what}"
        for what, (heads, own) in moved.items()
        if heads != own
    ]
    note = f"its slices make {', '.join(wrong)}" if wrong else ""
    if seen.call is not None:
        return Check(name, None, None, ok=not wrong, note=note)
    heads, own_heads = moved["W_O's input"]
    n_map = _heads_of_map(output, seen.stack.name, head.layer)
    if n_map not in (None, n_head):
        note = f"the layer attends with {n_map} heads, and the slices are those of {n_head}"
        return Check(name, None, None, ok=False, note=note)
    if own_heads == heads and n_map is not None:
        note = "seen in the number of maps, and in W_O's input"
        return Check(name, None, None, ok=True, note=note)
    # Heads may depend on each other where nobody sees it, as in Doge, whose mask is made of all values.
    ok = None if own_heads <= heads else False
    return Check(
        name, None, None, ok=ok, note=note or "the layer's own number of heads is not to be seen"
    )


def _run_silenced(
    model: Any, checkpoint: Checkpoint, head: HeadWeights, seen: LayerRun
) -> tuple[Any, list[Handed], list[torch.Tensor]]:
    """Run the model without one head: its columns of Q, K and V, and of what attention returns, are 0.

    Returns:
        The model's output; what the layer handed to its attention at each turn; and what entered W_O.
    """
    import torch

    own = {part: _columns_of_slice(seen, part, head) for part in PARTS}
    handed: list[Handed] = []
    entered: list[torch.Tensor] = []
    turns: dict[str, int] = defaultdict(int)

    def silence(part: str, inputs: Any, output: Any) -> Any:
        turns[part] += 1
        if part == "O":
            entered.append(inputs[0].clone())
        if part == "O" or turns[part] != seen.turn + 1:
            return None
        made = _tensor(output).clone()
        made[..., own[part]] = 0
        return (made, *output[1:]) if isinstance(output, tuple) else made

    def attend(call: Handed) -> torch.Tensor | None:
        if seen.call is None or not _is_at(call, seen.stack.place(head.layer)):
            return None
        handed.append(call)
        if len(handed) != seen.turn + 1:
            return None
        collected = seen.call.output.flatten(2).clone()
        collected[..., own["O"]] = 0
        return collected.view_as(seen.call.output)

    hooks = [
        module.register_forward_hook(lambda _, *values, part=part: silence(part, *values))
        for part, module in seen.modules.items()
        if part in PARTS
    ]
    _, run = _call(model, checkpoint, seen.stack, seen.call is None, seen.batch)
    with torch.no_grad(), told_as_the_models_fault(checkpoint), _float64(), attending(model, attend):
        output = run()
    for hook in hooks:
        hook.remove()
    return output, handed, entered


def _moved_heads(
    head: HeadWeights, seen: LayerRun, handed: list[Handed], entered: list[torch.Tensor]
) -> dict[str, tuple[set[int], set[int]]]:
    """Of what a run without a head changed: which heads point elsewhere, and which ones should.

    Args:
        head: that is left out.
        seen: the run with it.
        handed, entered: what the layer's attention was given without it, and W_O, at each turn.
    """
    n_head, group = head.n_head, head.n_head // head.n_kv_head
    kv_head = head.head // group
    before, after = (
        x.unflatten(-1, (n_head, -1)).flatten(0, -3).unsqueeze(2)
        for x in (seen.inputs["O"], entered[seen.turn])
    )
    readers = {head.head} if seen.call else set(range(kv_head * group, (kv_head + 1) * group))
    moved = {"W_O's input": (_moved(before, after), readers)}
    if seen.call is not None:
        now = handed[seen.turn]
        moved |= {
            "queries": (_moved(seen.call.query, now.query), {head.head}),
            "keys": (_moved(seen.call.key, now.key), {kv_head}),
            "values": (_moved(seen.call.value, now.value), {kv_head}),
        }
    return moved


def _heads_of_map(output: Any, stack: str, layer: int) -> int | None:
    """How many heads a layer's map has among those that a model returned; None if it returned none."""
    maps = next(
        (output.get(key) for key in (f"{stack}_attentions", "attentions") if key in output), None
    )
    if not isinstance(maps, tuple) or len(maps) <= layer:
        return None
    shape: list[int] = list(getattr(maps[layer], "shape", ()))
    return shape[1] if len(shape) == 4 else None


def _moved(before: torch.Tensor, after: torch.Tensor) -> set[int]:
    """The heads whose vectors point elsewhere than before: of two `n_batch n_head n d`."""
    first, second = (
        x / x.norm(dim=-1, keepdim=True).clamp_min(1e-300) for x in (before.double(), after.double())
    )
    far = (first - second).abs().amax((0, 2, 3)) > MOVED
    return set(far.nonzero().flatten().tolist())


def _stack_of(model: Any, checkpoint: Checkpoint, head: HeadWeights) -> Stack:
    """The stack in the loaded model: transformers may give modules other names than the files have."""
    kind, config = f"the loaded {type(model).__name__}", checkpoint.config()
    stored = find_stacks(open_weights(checkpoint).names, config, checkpoint.name)
    own = choose_stack(stored, head.stack, checkpoint.name)
    stacks = find_stacks(model.state_dict().keys(), config, kind)
    alike = [each for each in stacks if (each.tower, each.layout.cross) == (own.tower, own.layout.cross)]
    if len(alike) != 1:
        alike = [choose_stack(stacks, head.stack, kind)]
    [stack] = alike
    if head.layer not in stack.numbers:
        raise ModelError(
            f"transformers cannot run {checkpoint.name}: its {type(model).__name__} has {stack.n_layer}"
            f" layers, the checkpoint {head.n_layer}."
        )
    return stack


TOWERS = {"vision": ("get_image_features", "pixel_values"), "text": ("get_text_features", "input_ids")}
"""What runs one tower of a model that has several, if it has such a method, and what it is given."""


def _call(
    model: Any, checkpoint: Checkpoint, stack: Stack, maps: bool, batch: dict[str, Any] | None = None
) -> tuple[dict[str, Any], Callable[[], Any]]:
    """The inputs of a model, or of the tower that the stack is in, and what runs it on them.

    Args:
        model, checkpoint, stack: which.
        maps: whether it is to return its maps.
        batch: the inputs, where they are known.
    """
    method, main = TOWERS.get(stack.tower, ("forward", model.main_input_name))
    with told_as_the_models_fault(checkpoint):
        inputs = _inputs(main, model.config, checkpoint) if batch is None else batch
    options = {"output_attentions": True} if maps else {}
    return inputs, lambda: getattr(model, method, model)(**inputs, **options)


def _inputs(main: str, config: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    """Something to read, to look at or to hear, of the sizes that the model's configuration says.

    Args:
        main: what the model calls its input.
        config: the model's.
        checkpoint: where its tokenizer is.
    """
    batch: dict[str, Any] = {}
    if main == "input_ids":
        batch = _tokens(checkpoint, _n_vocab(config))
    elif main == "pixel_values":
        vision = getattr(config, "vision_config", None) or getattr(config, "encoder", None) or config
        size = vision.image_size
        height, width = (size, size) if isinstance(size, int) else size
        batch[main] = _drawn(2, getattr(vision, "num_channels", 3), height, width)
    elif main == "input_features":
        batch[main] = _drawn(2, config.num_mel_bins, 2 * config.max_source_positions)
    else:
        batch[main] = _drawn(2, 4000)  # samples of sound
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = _tokens(checkpoint, _n_vocab(config))["input_ids"]
    return batch


def _n_vocab(config: Any) -> int:
    """How many tokens there are; CANINE, which reads characters, does not say."""
    return getattr(config.get_text_config(), "vocab_size", 128)


def _drawn(*shape: int) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _tokens(checkpoint: Checkpoint, n_vocab: int) -> dict[str, torch.Tensor]:
    """Two texts of different lengths; where there is no tokenizer, as many drawn tokens."""
    import torch

    try:
        tokenizer = load_tokenizer(checkpoint)
        batch = dict(tokenizer(list(TEXTS), padding=True, return_tensors="pt"))
        ids = batch["input_ids"]
        if len(ids.unique()) > len(TEXTS[1].split()) and int(ids.max()) < n_vocab:
            return batch
    except Exception:
        pass  # none, or none that loads or knows the words, as above: then any tokens will do
    drawn = torch.randint(n_vocab, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(drawn)
    mask[1, 7:] = 0
    return {"input_ids": drawn, "attention_mask": mask}


def _check_layer(checkpoint: Checkpoint, head: HeadWeights, seen: LayerRun) -> list[Check]:
    """Our own attention with the checkpoint's weights, against the model's whole layer."""
    import torch

    from attnscope.attention.mha import MultiHeadAttention
    from attnscope.tracing.calls import trace_call

    assert seen.attention is not None
    weights = open_weights(checkpoint)
    stack = choose_stack(
        find_stacks(weights.names, checkpoint.config(), checkpoint.name), head.stack, checkpoint.name
    )
    bias = any(slice_.name == "b_Q" for slice_ in head.weights)
    mha = MultiHeadAttention(
        d_feat=head.d_feat, n_head=head.n_head, bias=bias, dtype=torch.float64
    ).eval()
    mha.load_state_dict(_state(weights, stack, head.layer))
    x = seen.inputs["Q"]
    with torch.no_grad():
        ours = trace_call(mha, x, x, x, seen.mask, keep=True, findings=False)
    theirs = {
        **{f"{part}_feat": seen.outputs[part] for part in ("Q", "K", "V")},
        "attention": seen.attention,
        "x_rsh2": seen.inputs["O"],
        "x": seen.outputs["O"],
    }
    return [_check(name, ours[name].tensor, theirs[name]) for name in theirs]


def _state(weights: Weights, stack: Stack, layer: int) -> dict[str, torch.Tensor]:
    """The layer's weights, read from the checkpoint's bytes, as our module names them."""
    import torch

    state = {}
    names = set(weights.names)
    for part in PARTS:
        for kind in ("weight", "bias"):
            tensor = stack.tensor(part, layer, kind)
            if tensor in names:
                values = numbers(*weights.read(tensor))
                state[f"W_{part}.{kind}"] = torch.tensor(values, dtype=torch.float64)
    return state


def _check_slices(head: HeadWeights, seen: LayerRun) -> list[Check]:
    """Each slice, applied by itself, against the same head in the model's own tensors."""
    import torch

    slices = {
        slice_.name: torch.tensor(numbers(slice_.array, slice_.dtype), dtype=torch.float64)
        for slice_ in head.weights
    }
    checks = []
    if head.latent is not None:
        checks = _check_latent(head, head.latent, seen, slices)
    with torch.no_grad():
        for part in ("Q", "K", "V") if head.latent is None else ():
            made = seen.inputs[part] @ slices[f"W_{part}"].mT + slices.get(f"b_{part}", 0)
            own = _columns(seen.stack, part, head)
            checks.append(_check(_names(part, slices), made, seen.outputs[part][..., own]))
        # What this head alone adds to the output: the model's own W_O, the other heads silent.
        own, x = _columns(seen.stack, "O", head), seen.inputs["O"]
        alone = torch.zeros_like(x)
        alone[..., own] = x[..., own]
        made = alone[..., own] @ slices["W_O"].mT + slices.get("b_O", 0)
        checks.append(_check(_names("O", slices), made, _tensor(seen.modules["O"](alone))))
    return checks


def _check_latent(
    head: HeadWeights, latent: Latent, seen: LayerRun, slices: dict[str, torch.Tensor]
) -> list[Check]:
    """The parts of latent attention, each against the model's own; and what attention is handed."""
    import torch

    def of(names: str, part: str, own: slice) -> Check:
        rows = torch.cat([slices[name] for name in names.split(", ")])
        biases = [slices[name] for name in ("b_DQ", "b_DKV", "b_KR") if name.replace("b", "W") in names
                  and name in slices]  # fmt: skip
        made = seen.inputs[part] @ rows.mT + (torch.cat(biases) if biases else 0)
        return _check(names, made, seen.outputs[part][..., own])

    all_of = slice(None)
    checks = [of("W_DQ", "DQ", all_of)] if latent.d_CQ is not None else []
    up = "W_Q" if latent.d_CQ is None else "W_UQ"
    own = {part: columns_of(latent, part, head.head) for part in "QKV"}
    checks += [
        of(f"{up}, W_QR", "Q", own["Q"]),
        of("W_DKV, W_KR", "DKV", all_of),
        of("W_UK", "K", own["K"]),
        of("W_UV", "V", own["V"]),
    ]
    checks += [
        _check(name, slices[name], seen.modules[name].weight.detach())
        for name in ("g_Q", "g_KV")
        if name in slices
    ]
    if seen.call is not None:
        handed = {
            "Q": seen.call.query[:, head.head, :, : latent.d_nope],
            "K": seen.call.key[:, head.head, :, : latent.d_nope],
            "V": seen.call.value[:, head.head],
        }
        own["Q"] = slice(own["Q"].start, own["Q"].start + latent.d_nope)
        checks += [
            _check(f"{part} as the layer attends", made[..., own[part]].reshape(x.shape), x)
            for part, x in handed.items()
            for made in [seen.outputs[part]]
        ]
    return checks


def _columns(stack: Stack, part: str, head: HeadWeights) -> slice:
    """Which columns of what a module makes (of what W_O takes in) are the head's."""
    layout = stack.layout
    if head.latent is not None:
        return columns_of(head.latent, part, head.head)
    start = layout.packing.slot(part, head.head, head.n_head, head.n_kv_head) * head.d_head
    return slice(start, start + head.d_head)


def _columns_of_slice(seen: LayerRun, part: str, head: HeadWeights) -> slice:
    """The same as the slice has them, where the model keeps the weight as the file does."""
    if head.latent is not None and part != "O":
        names = {"Q": ("W_Q", "W_UQ", "W_QR"), "K": ("W_UK",), "V": ("W_UV",)}[part]
        rows = [each for each in head.weights if each.name in names]
        return slice(rows[0].start, rows[-1].stop)
    [weight] = [each for each in head.weights if each.name == f"W_{part}"]
    if tuple(seen.modules[part].weight.shape) != weight.shape:
        return _columns(seen.stack, part, head)
    return slice(weight.start, weight.stop)


def _names(part: str, slices: dict[str, torch.Tensor]) -> str:
    return ", ".join(name for name in (f"W_{part}", f"b_{part}") if name in slices)


def _check(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> Check:
    difference = float((ours - theirs).abs().max())
    return Check(name, difference, TOLERANCE, ok=difference <= TOLERANCE)
