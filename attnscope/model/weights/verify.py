"""Compare a checkpoint's weights, as attnscope reads them, with the computation of the model itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.base.arrays import numbers
from attnscope.base.errors import ModelError
from attnscope.base.process.default_dtype import default_dtype
from attnscope.document.result import Check
from attnscope.model.families.table import family_of
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.indices import enumerated
from attnscope.model.files.latent import DOWN_KV, DOWN_Q, NORM_KV, NORM_Q, columns_of
from attnscope.model.files.layouts import PARTS, Stack, choose_stack, find_stacks
from attnscope.model.files.result import HeadWeights, Latent
from attnscope.model.files.tensors import Weights, open_weights
from attnscope.model.run.attention_hook import AttentionCall, AttentionInputs, attending, observing
from attnscope.model.run.load import as_model_error, load_config, load_model, load_tokenizer

if TYPE_CHECKING:
    import torch

TEXTS = ("The cat sat on the mat because it was tired.", "Attention is all you need.")
"""The model's inputs for the comparison: two lengths, so that padding is masked."""

MOVED = 1e-6
"""The least difference between two directions that differ; rounding in float64 is far smaller."""

TOLERANCE = 1e-9
"""Both sides compute in float64: rounding errors are far smaller, and mistakes far larger."""


@dataclass
class LayerRun:
    """The inputs and outputs of one layer's modules in a run of the model."""

    #: the layer's stack in the model, whose module names may differ from those of its files.
    stack: Stack
    modules: dict[str, Any]
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]
    #: how many times its modules ran before, if layers share them.
    turn: int
    batch: dict[str, Any]
    #: the inputs and outputs of the layer's attention; None: they could not be captured.
    call: AttentionCall | None
    #: the layer's maps, if they are compared with attnscope's own attention.
    attention: torch.Tensor | None
    #: which keys are not padding; None: all.
    mask: torch.Tensor | None


def verify_head(checkpoint: Checkpoint, weights_of_head: HeadWeights) -> list[Check]:
    """Run the model in float64, and compare a head's weights with what its layer computes.

    The head's slices, as read from the checkpoint's bytes, are applied to the hidden states at the
    layer's projections, and compared with the same head in the output of the model's own modules
    (transformers, eager). If attnscope's `MultiHeadAttention` can express the family
    (`Family.plain`), the whole layer is compared too: its Q, K and V projections, attention and output.

    Args:
        weights_of_head: the stack, the layer and the head, as `read_head` returned them.
    """
    config = load_config(checkpoint)
    plain = (
        weights_of_head.stack == "self"
        and family_of(config.model_type).plain
        and not getattr(config, "is_decoder", False)
    )
    model = load_model(checkpoint, config, dtype="float64", attention="eager")
    with suppress(AttributeError, ValueError):  # no experts, or their implementation cannot be chosen
        model.set_experts_implementation("eager")  # the fast ones do not know float64
    layer_run = _run_model(model, checkpoint, weights_of_head, maps=plain)
    whole = _check_layer(checkpoint, weights_of_head, layer_run) if plain else []
    slices = _check_slices(weights_of_head, layer_run)
    return [*whole, *slices, _check_head(model, checkpoint, weights_of_head, layer_run)]


def _run_model(model: Any, checkpoint: Checkpoint, head: HeadWeights, *, maps: bool) -> LayerRun:
    """Run the model, and capture what one layer's attention computes; its maps too, if needed."""
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
    captured: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    calls: list[AttentionCall] = []

    def record(part: str, inputs: Any, output: Any) -> None:
        # Copies, because some models later overwrite these tensors in place.
        captured[part].append((inputs[0].clone(), _tensor(output).clone()))

    hooks = [
        module.register_forward_hook(lambda _, *values, part=part: record(part, *values))
        for part, module in modules.items()
    ]
    batch, run = _call(model, checkpoint, stack, maps)
    observed = observing(model, lambda call: calls.append(call) if _is_at(call, place) else None)
    with torch.no_grad(), as_model_error(checkpoint), _float64(), observed:
        outputs = run()
    for hook in hooks:
        hook.remove()
    if any(len(captured[part]) <= turn for part in modules):
        raise ModelError(
            f"cannot verify {checkpoint.name}: {type(model).__name__} did not use"
            f" {stack.module('Q', head.layer)} for attnscope's inputs."
        )
    inputs = [captured[part][turn][0] for part in PARTS]
    outputs_QKV = [captured[part][turn][1] for part in "QKV"]
    if not _finite(inputs[:3]) or (_finite(outputs_QKV) and not _finite(inputs)):
        whose = stack.place(head.layer)
        raise ModelError(
            f"cannot verify {checkpoint.name}: {whose} computes values that are not finite."
        )
    mask = batch.get("attention_mask")
    return LayerRun(
        stack=stack,
        modules=modules,
        inputs={part: captured[part][turn][0] for part in modules},
        outputs={part: captured[part][turn][1] for part in modules},
        turn=turn,
        batch=batch,
        call=calls[turn] if len(calls) > turn else None,
        attention=outputs.attentions[head.layer] if maps else None,
        mask=None if mask is None else mask.bool()[:, None, None, :],
    )


def _finite(tensors: list[torch.Tensor]) -> bool:
    return all(bool(each.isfinite().all()) for each in tensors)


def _is_at(inputs: AttentionInputs, place: str) -> bool:
    """Check whether a call belongs to the layer whose attention has this name."""
    return inputs.path == place or inputs.path.startswith(f"{place}.")


def _tensor(output: Any) -> torch.Tensor:
    """Return the output of a projection; a quantised one also returns its scale."""
    tensor: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return tensor


@contextmanager
def _float64() -> Iterator[None]:
    """Make float64 the default dtype, for tensors that a model creates without naming one.

    Random numbers, such as those by which ViT-MAE masks patches, are the same in every run.
    """
    import torch

    with default_dtype(torch.float64), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _check_head(model: Any, checkpoint: Checkpoint, head: HeadWeights, layer_run: LayerRun) -> Check:
    """Check that the slices belong to one head of the layer's attention, and to no other.

    The model runs again with the head's columns of Q, K and V, and its part of attention's output, set
    to 0. Then only this head's queries may change direction, the keys and values of the head that it
    reads, and the part of W_O's input that belongs to its slice of W_O. Normalisations, rotations or a
    gate in between do not matter. If attention cannot be captured, W_O's input decides.
    """
    name = f"the layer's head {head.head}"
    n_head, n_kv_head = head.n_head, head.n_kv_head
    call = layer_run.call
    if call is not None and (call.n_head, call.n_kv_head) != (n_head, n_kv_head):
        note = f"the layer attends with {call.n_head} query heads and {call.n_kv_head} key heads"
        note += f", but the slices are those of {n_head} and {n_kv_head}"
        return Check(name, None, None, ok=False, note=note)
    output, attention_inputs, inputs_of_O = _run_silenced(model, checkpoint, head, layer_run)
    moved = _changed_heads(head, layer_run, attention_inputs, inputs_of_O)
    if family_of(checkpoint.config().get("model_type")).values_again:
        group, (heads, expected) = n_head // n_kv_head, moved["W_O's input"]
        others = {each for each in heads if each // group == head.head // group} - {head.head}
        moved["W_O's input"] = heads - others, expected
    wrong = [
        f"{what} of heads {enumerated(map(str, sorted(heads)))}" if heads else f"no {what}"
        for what, (heads, expected) in moved.items()
        if heads != expected
    ]
    note = f"its slices affect {', '.join(wrong)}" if wrong else ""
    if call is not None:
        return Check(name, None, None, ok=not wrong, note=note)
    heads, expected_heads = moved["W_O's input"]
    n_map = _heads_of_map(output, layer_run.stack.name, head.layer)
    if n_map not in (None, n_head):
        note = f"the layer attends with {n_map} heads, but the slices are those of {n_head}"
        return Check(name, None, None, ok=False, note=note)
    if expected_heads == heads and n_map is not None:
        note = "checked by the number of maps and by W_O's input"
        return Check(name, None, None, ok=True, note=note)
    # Heads may depend on each other invisibly, as in Doge, whose mask is computed from all values.
    ok = None if expected_heads <= heads else False
    return Check(
        name, None, None, ok=ok, note=note or "the layer's own number of heads cannot be observed"
    )


def _run_silenced(
    model: Any, checkpoint: Checkpoint, head: HeadWeights, layer_run: LayerRun
) -> tuple[Any, list[AttentionInputs], list[torch.Tensor]]:
    """Run the model without one head: its columns of Q, K, V and of attention's output are set to 0.

    Returns:
        The model's output; and for each turn, the inputs of the layer's attention, and of W_O.
    """
    import torch

    columns = {part: _columns_of_slice(layer_run, part, head) for part in PARTS}
    attention_inputs: list[AttentionInputs] = []
    inputs_of_O: list[torch.Tensor] = []
    turns: dict[str, int] = defaultdict(int)

    def silence(part: str, inputs: Any, output: Any) -> Any:
        turns[part] += 1
        if part == "O":
            inputs_of_O.append(inputs[0].clone())
        if part == "O" or turns[part] != layer_run.turn + 1:
            return None
        silenced = _tensor(output).clone()
        silenced[..., columns[part]] = 0
        return (silenced, *output[1:]) if isinstance(output, tuple) else silenced

    def attend(call: AttentionInputs) -> torch.Tensor | None:
        if layer_run.call is None or not _is_at(call, layer_run.stack.place(head.layer)):
            return None
        attention_inputs.append(call)
        if len(attention_inputs) != layer_run.turn + 1:
            return None
        collected = layer_run.call.output.flatten(2).clone()
        collected[..., columns["O"]] = 0
        return collected.view_as(layer_run.call.output)

    hooks = [
        module.register_forward_hook(lambda _, *values, part=part: silence(part, *values))
        for part, module in layer_run.modules.items()
        if part in PARTS
    ]
    _, run = _call(model, checkpoint, layer_run.stack, layer_run.call is None, layer_run.batch)
    with torch.no_grad(), as_model_error(checkpoint), _float64(), attending(model, attend):
        output = run()
    for hook in hooks:
        hook.remove()
    return output, attention_inputs, inputs_of_O


def _changed_heads(
    head: HeadWeights,
    layer_run: LayerRun,
    attention_inputs: list[AttentionInputs],
    inputs_of_O: list[torch.Tensor],
) -> dict[str, tuple[set[int], set[int]]]:
    """Find the heads that changed direction in a run without a head, and those that should have."""
    n_head, group = head.n_head, head.n_head // head.n_kv_head
    kv_head = head.head // group
    before, after = (
        x.unflatten(-1, (n_head, -1)).flatten(0, -3).unsqueeze(2)
        for x in (layer_run.inputs["O"], inputs_of_O[layer_run.turn])
    )
    readers = {head.head} if layer_run.call else set(range(kv_head * group, (kv_head + 1) * group))
    moved = {"W_O's input": (_heads_that_turned(before, after), readers)}
    if layer_run.call is not None:
        changed = attention_inputs[layer_run.turn]
        moved |= {
            "queries": (_heads_that_turned(layer_run.call.query, changed.query), {head.head}),
            "keys": (_heads_that_turned(layer_run.call.key, changed.key), {kv_head}),
            "values": (_heads_that_turned(layer_run.call.value, changed.value), {kv_head}),
        }
    return moved


def _heads_of_map(output: Any, stack: str, layer: int) -> int | None:
    """Return the number of heads in the map of a layer that a model returned; None if there is none."""
    maps = next(
        (output.get(key) for key in (f"{stack}_attentions", "attentions") if key in output), None
    )
    if not isinstance(maps, tuple) or len(maps) <= layer:
        return None
    shape: list[int] = list(getattr(maps[layer], "shape", ()))
    return shape[1] if len(shape) == 4 else None


def _heads_that_turned(before: torch.Tensor, after: torch.Tensor) -> set[int]:
    """Return the heads whose vectors changed direction between two tensors `n_batch n_head n d`."""
    first, second = (
        x / x.norm(dim=-1, keepdim=True).clamp_min(1e-300) for x in (before.double(), after.double())
    )
    differs = (first - second).abs().amax((0, 2, 3)) > MOVED
    return set(differs.nonzero().flatten().tolist())


def _stack_of(model: Any, checkpoint: Checkpoint, head: HeadWeights) -> Stack:
    """Return the stack in the loaded model, whose module names may differ from those in the files."""
    kind, config = f"the loaded {type(model).__name__}", checkpoint.config()
    stored = find_stacks(open_weights(checkpoint).names, config, checkpoint.name)
    stack_in_file = choose_stack(stored, head.stack, checkpoint.name)
    stacks = find_stacks(model.state_dict().keys(), config, kind)
    matching = [
        each
        for each in stacks
        if (each.tower, each.layout.cross) == (stack_in_file.tower, stack_in_file.layout.cross)
    ]
    if len(matching) != 1:
        matching = [choose_stack(stacks, head.stack, kind)]
    [stack] = matching
    if head.layer not in stack.numbers:
        raise ModelError(
            f"transformers cannot run {checkpoint.name}: its {type(model).__name__} has {stack.n_layer}"
            f" layers, the checkpoint {head.n_layer}."
        )
    return stack


TOWERS = {"vision": ("get_image_features", "pixel_values"), "text": ("get_text_features", "input_ids")}
"""The method that runs one tower of a model with several, if it exists, and its main input."""


def _call(
    model: Any, checkpoint: Checkpoint, stack: Stack, maps: bool, batch: dict[str, Any] | None = None
) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Return the inputs of a model, or of its tower with the stack, and a function that runs it on them.

    Args:
        batch: the inputs, if they are known already.
    """
    method, main = TOWERS.get(stack.tower, ("forward", model.main_input_name))
    with as_model_error(checkpoint):
        inputs = _inputs(main, model.config, checkpoint) if batch is None else batch
    options = {"output_attentions": True} if maps else {}
    return inputs, lambda: getattr(model, method, model)(**inputs, **options)


def _inputs(main: str, config: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    """Create text, image or audio inputs of the sizes in the model's configuration."""
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
    """Return the size of the vocabulary; 128 for CANINE, which reads characters and gives none."""
    return getattr(config.get_text_config(), "vocab_size", 128)


def _drawn(*shape: int) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _tokens(checkpoint: Checkpoint, n_vocab: int) -> dict[str, torch.Tensor]:
    """Tokenize two texts of different lengths; without a usable tokenizer, draw random tokens."""
    import torch

    try:
        tokenizer = load_tokenizer(checkpoint)
        batch = dict(tokenizer(list(TEXTS), padding=True, return_tensors="pt"))
        ids = batch["input_ids"]
        if len(ids.unique()) > len(TEXTS[1].split()) and int(ids.max()) < n_vocab:
            return batch
    except Exception:
        pass  # there is none, or it does not load: any tokens will do, as for one without these words
    drawn = torch.randint(n_vocab, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(drawn)
    mask[1, 7:] = 0
    return {"input_ids": drawn, "attention_mask": mask}


def _check_layer(checkpoint: Checkpoint, head: HeadWeights, layer_run: LayerRun) -> list[Check]:
    """Compare attnscope's own attention with the checkpoint's weights to the model's whole layer."""
    import torch

    from attnscope.attention.mha import MultiHeadAttention
    from attnscope.observe.calls import trace_call

    assert layer_run.attention is not None
    weights = open_weights(checkpoint)
    stack = choose_stack(
        find_stacks(weights.names, checkpoint.config(), checkpoint.name), head.stack, checkpoint.name
    )
    bias = any(slice_.name == "b_Q" for slice_ in head.weights)
    mha = MultiHeadAttention(
        d_feat=head.d_feat, n_head=head.n_head, bias=bias, dtype=torch.float64
    ).eval()
    mha.load_state_dict(_state(weights, stack, head.layer))
    x = layer_run.inputs["Q"]
    with torch.no_grad():
        ours = trace_call(mha, x, x, x, layer_run.mask, keep=True, findings=False)
    theirs = {
        **{f"{part}_feat": layer_run.outputs[part] for part in ("Q", "K", "V")},
        "attention": layer_run.attention,
        "x_rsh2": layer_run.inputs["O"],
        "x": layer_run.outputs["O"],
    }
    return [_check(name, ours[name].tensor, theirs[name]) for name in theirs]


def _state(weights: Weights, stack: Stack, layer: int) -> dict[str, torch.Tensor]:
    """Read a layer's weights from the checkpoint, under the names of `MultiHeadAttention`."""
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


def _check_slices(head: HeadWeights, layer_run: LayerRun) -> list[Check]:
    """Compare the output of each slice with the same head in the model's own tensors."""
    import torch

    slices = {
        slice_.name: torch.tensor(numbers(slice_.array, slice_.dtype), dtype=torch.float64)
        for slice_ in head.weights
    }
    checks = []
    if head.latent is not None:
        checks = _check_latent(head, head.latent, layer_run, slices)
    with torch.no_grad():
        for part in ("Q", "K", "V") if head.latent is None else ():
            output = layer_run.inputs[part] @ slices[f"W_{part}"].mT + slices.get(f"b_{part}", 0)
            columns = _columns(layer_run.stack, part, head)
            checks.append(_check(_names(part, slices), output, layer_run.outputs[part][..., columns]))
        # This head's term of the output: the model's own W_O, with the other heads set to 0.
        columns, x = _columns(layer_run.stack, "O", head), layer_run.inputs["O"]
        alone = torch.zeros_like(x)
        alone[..., columns] = x[..., columns]
        output = alone[..., columns] @ slices["W_O"].mT + slices.get("b_O", 0)
        checks.append(_check(_names("O", slices), output, _tensor(layer_run.modules["O"](alone))))
    return checks


def _check_latent(
    head: HeadWeights, latent: Latent, layer_run: LayerRun, slices: dict[str, torch.Tensor]
) -> list[Check]:
    """Compare each part of latent attention, and the inputs of attention, with the model's own."""
    import torch

    def check(names: str, part: str, columns: slice) -> Check:
        rows = torch.cat([slices[name] for name in names.split(", ")])
        biases = [slices[name] for name in ("b_DQ", "b_DKV", "b_KR") if name.replace("b", "W") in names
                  and name in slices]  # fmt: skip
        output = layer_run.inputs[part] @ rows.mT + (torch.cat(biases) if biases else 0)
        return _check(names, output, layer_run.outputs[part][..., columns])

    all_columns = slice(None)
    checks = [check("W_DQ", "DQ", all_columns)] if latent.d_CQ is not None else []
    up = "W_Q" if latent.d_CQ is None else "W_UQ"
    columns = {part: columns_of(latent, part, head.head) for part in "QKV"}
    checks += [
        check(f"{up}, W_QR", "Q", columns["Q"]),
        check("W_DKV, W_KR", "DKV", all_columns),
        check("W_UK", "K", columns["K"]),
        check("W_UV", "V", columns["V"]),
    ]
    checks += [
        _check(name, slices[name], layer_run.modules[name].weight.detach())
        for name in ("g_Q", "g_KV")
        if name in slices
    ]
    if layer_run.call is not None:
        attention_inputs = {
            "Q": layer_run.call.query[:, head.head, :, : latent.d_nope],
            "K": layer_run.call.key[:, head.head, :, : latent.d_nope],
            "V": layer_run.call.value[:, head.head],
        }
        columns["Q"] = slice(columns["Q"].start, columns["Q"].start + latent.d_nope)
        checks += [
            _check(f"{part} as the layer attends", output[..., columns[part]].reshape(x.shape), x)
            for part, x in attention_inputs.items()
            for output in [layer_run.outputs[part]]
        ]
    return checks


def _columns(stack: Stack, part: str, head: HeadWeights) -> slice:
    """Return the head's columns of a module's output (of the input of W_O)."""
    layout = stack.layout
    if head.latent is not None:
        return columns_of(head.latent, part, head.head)
    start = layout.packing.slot(part, head.head, head.n_head, head.n_kv_head) * head.d_head
    return slice(start, start + head.d_head)


def _columns_of_slice(layer_run: LayerRun, part: str, head: HeadWeights) -> slice:
    """Return the same by the slice's own range, if the model stores the weight as the file does."""
    if head.latent is not None and part != "O":
        names = {"Q": ("W_Q", "W_UQ", "W_QR"), "K": ("W_UK",), "V": ("W_UV",)}[part]
        rows = [each for each in head.weights if each.name in names]
        return slice(rows[0].start, rows[-1].stop)
    [weight] = [each for each in head.weights if each.name == f"W_{part}"]
    if tuple(layer_run.modules[part].weight.shape) != weight.stored_shape:
        return _columns(layer_run.stack, part, head)
    return slice(weight.start, weight.stop)


def _names(part: str, slices: dict[str, torch.Tensor]) -> str:
    return ", ".join(name for name in (f"W_{part}", f"b_{part}") if name in slices)


def _check(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> Check:
    difference = float((ours - theirs).abs().max())  # NaN on both sides does not count as equal
    return Check.within(name, difference, TOLERANCE)
