"""Compare how the heads of two models attend, or of one model to two texts: `attnscope.compare_maps`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.options import with_keywords
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import spelled
from attnscope.base.text import nearest, shortened
from attnscope.model.files.adapter import Adapter, read_adapter
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.indices import enumerated
from attnscope.model.files.loaded import LoadedModel, find_model
from attnscope.model.heads.result import HeadRow
from attnscope.model.maps.attention_maps import attention_maps
from attnscope.model.maps.differences import MapDifferences, WeightChange
from attnscope.model.maps.options import ComparedMaps, MapRun
from attnscope.model.maps.result import AttentionMap, AttentionMaps

if TYPE_CHECKING:
    import numpy as np

METRICS = {
    "change": "mean over queries of the total variation distance ½·Σ|b − a| of their weights in A and B",
    "largest": "the total variation distance of the query for which it is largest",
}

STRONGEST = 3
"""The number of weights that are listed for each head."""


@with_keywords
def compare_maps(
    a: Any,
    b: Any = None,
    text: str | None = None,
    other_text: str | None = None,
    *,
    compared: ComparedMaps,
    run: MapRun,
    progress: Progress = silent,
) -> MapDifferences:
    """Run two models on one text, or one model on two, and compare their attention head by head.

    For example::

        change = attnscope.compare_maps("gpt2", "./my-finetuned-gpt2", "The cat sat on the mat.")
        change.ranked("change", top=5)  # the heads that attend most differently
        change.strongest[3, 7][0]  # which query, which key, and their weight in both
        attnscope.compare_maps("gpt2", "The cat sat.", "The dog sat.")  # two texts, one model
        attnscope.compare_maps("gpt2", text="The cat sat.", adapter="./my-lora")

    Args:
        a, b: the models, each as in `attention_maps`. If `b` is None, it is `a`, which reads
            `other_text`, or to which the adapter is added. A `b` of several words is the first of two
            texts.
        text: the text to read.
        other_text: the second text, for one model; it must have as many tokens.
        progress: called with the progress of the work.

    Returns:
        For each head how much of a query's weight goes to other keys, and where; the maps of both.

    Raises:
        OptionError: there is nothing to compare, or options contradict each other.
        ModelError: a model cannot be run; or tokens, layers or heads of the two differ.
        SizeError: there is too little memory for whole maps.
    """
    if other_text is None and _is_text(b):
        b, text, other_text = None, b, text
    adapter, sort = compared.adapter, compared.sort
    _check_options(b, other_text, adapter, sort)
    one = _found(a, run)
    other = one if b is None else _found(b, run)
    merged = None if adapter is None else read_adapter(adapter)
    dtype, notices = _dtype_of(one, other, run.dtype)
    names = ("ids", "pair", "target", "image", "truncate", "stack")
    options = {name: getattr(compared, name) for name in names} | {
        "layers": "all" if compared.layers is None else compared.layers,
        "heads": "all" if compared.heads is None else compared.heads,
        "pool": "none",
        "dtype": dtype,
        "device": run.device,
        "memory": run.memory,
        "progress": progress,
    }
    of_a = attention_maps(one, text, **options)
    if merged is not None:
        with stage(progress, f"merging {merged.name} into {other.name} …"):
            other = _adapted(other, merged, dtype, run.device)
    of_b = attention_maps(other, text if other_text is None else other_text, **options)
    _check_comparable(of_a, of_b, two_texts=other_text is not None)
    table = MapDifferences(
        a=one.name,
        b=other.name,
        adapter=None if merged is None else merged.name,
        of_a=of_a,
        of_b=of_b,
        metrics=METRICS,
        layers={of_a.stack: (of_a.n_layer, of_a.n_head)},
        rows=[],
        strongest={},
        notices=list(dict.fromkeys([*notices, *of_a.notices, *of_b.notices])),
        sort=sort,
        reverse=compared.reverse,
        top=compared.top,
    )
    for map_a, map_b in zip(of_a.maps, of_b.maps, strict=True):
        row, table.strongest[map_a.layer, map_a.head] = _compared(of_a, map_a, map_b)
        table.rows.append(row)
    return table


def _dtype_of(a: Checkpoint, b: Checkpoint, dtype: str | None) -> tuple[str | None, list[str]]:
    """Return the dtype in which both run, by default not 16 bits, and notices about it."""
    from attnscope.base.process.memory import check_imports
    from attnscope.base.process.verbosity import kept_verbosity
    from attnscope.model.run.load import NARROW, load_config, narrow_dtype

    if dtype is not None:
        rounds = f"both ran in {dtype}: small differences may be its rounding."
        return dtype, [rounds] if dtype in NARROW else []
    check_imports(transformers=True)
    with kept_verbosity():
        stored = [narrow_dtype(each, load_config(each)) for each in (a, b)]
    narrow = next(filter(None, stored), None)
    if narrow is None:
        return None, []
    return "float32", [
        f"weights are stored in {narrow}, and both ran in float32, so that rounding makes no"
        f" differences; {spelled('dtype', narrow)} runs them as stored."
    ]


def _is_text(b: Any) -> bool:
    """Check whether the second argument is a text: several words, which name no folder or file."""
    return isinstance(b, str) and len(b.split()) > 1 and not Path(b).exists()


def _found(model: Any, run: MapRun) -> Checkpoint:
    """Find a model; tokenizer and image processor are for models that the user has loaded."""
    if model is None or isinstance(model, (str, Path, Checkpoint)):
        return find_model(model)
    return find_model(model, run.tokenizer, run.image_processor)


def _adapted(checkpoint: Checkpoint, adapter: Adapter, dtype: str | None, device: str) -> Checkpoint:
    """Load a model with a LoRA adapter merged into its weights, without PEFT.

    A model that the user has loaded is not changed: its merged weights are new parameters of a copy,
    rounded to its dtype.
    """
    import torch

    from attnscope.model.files.adapter import AdaptedWeights
    from attnscope.model.files.tensors import Tensors
    from attnscope.model.run.load import tokenizer_of
    from attnscope.model.run.open import open_model

    with open_model(checkpoint, device, dtype=dtype) as opened, opened.loading():
        opened.check_weights_fit()
        model = opened.load()
        parameters = dict(model.named_parameters(remove_duplicate=False))
        turns = any(type(module).__name__ == "Conv1D" for module in model.modules())
        merged = AdaptedWeights(Tensors(parameters), adapter, turns)
        for name in [*merged.modules, *merged.replaced]:
            values, _ = merged.read(name)
            old = parameters[name]
            new = torch.from_numpy(values[:].copy()).to(old.device, old.dtype)
            place, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(place), attribute, torch.nn.Parameter(new, requires_grad=False))
        image_processor = checkpoint.image_processor if isinstance(checkpoint, LoadedModel) else None
        tokenizer = tokenizer_of(checkpoint)
    return LoadedModel(checkpoint.name, None, model, tokenizer, image_processor)


def _check_options(b: Any, other_text: str | None, adapter: str | Path | None, sort: str | None) -> None:
    """Raise an OptionError if there is nothing to compare, or too much."""
    if other_text is not None and (b is not None or adapter is not None):
        raise OptionError(
            "two models and two texts: it would be unknown which of them makes the difference.",
            hint="two models and one text; or one model and two texts",
        )
    if b is None and other_text is None and adapter is None:
        raise OptionError(
            "there is one model and one text, but a comparison takes two of either.",
            hint=f"a second model, a second text, or {spelled(adapter='FOLDER')}",
        )
    if sort is not None and sort not in METRICS:
        raise OptionError(
            f"there is no metric {sort}: there are {enumerated(METRICS)}.",
            hint=spelled(sort=nearest(sort, METRICS) or "change"),
        )


def _check_comparable(of_a: AttentionMaps, of_b: AttentionMaps, *, two_texts: bool) -> None:
    """Raise a ModelError if maps have other layers, heads or sizes, or models other tokens."""
    a, b = (of_a.model, of_b.model) if of_a.model != of_b.model else ("A", "B")
    a, b = ("text A", "text B") if two_texts else (a, b)
    pairs = {
        "layers": (of_a.n_layer, of_b.n_layer),
        "heads": (of_a.n_head, of_b.n_head),
        "tokens": (len(of_a.key_tokens), len(of_b.key_tokens)),
        "queries": (len(of_a.query_tokens), len(of_b.query_tokens)),
    }
    for axis, (one, other) in pairs.items():
        if one != other:
            hint = "two checkpoints of one architecture"
            if axis in ("tokens", "queries"):
                hint = "texts with equal numbers of tokens" if two_texts else "the same tokenizer"
            raise ModelError(
                f"{a} and {b} cannot be compared: {a} has {one} {axis}, {b} has {other}.", hint=hint
            )
    if of_a.stack != of_b.stack or [(m.layer, m.head) for m in of_a.maps] != [
        (m.layer, m.head) for m in of_b.maps
    ]:
        raise ModelError(f"{a} and {b} cannot be compared: other layers have attention.")
    if two_texts:
        return
    for i, (one_token, other_token) in enumerate(zip(of_a.key_tokens, of_b.key_tokens, strict=True)):
        if one_token != other_token:
            x, y = shortened(one_token.text), shortened(other_token.text)
            raise ModelError(
                f"{a} and {b} cannot be compared: token {i} is {x!r} in {a} and {y!r} in {b}.",
                hint="two checkpoints with the same tokenizer",
            )


def _compared(
    maps: AttentionMaps, a: AttentionMap, b: AttentionMap
) -> tuple[HeadRow, list[WeightChange]]:
    """Compare two maps of one head: its row, and the weights that changed most."""
    import numpy as np

    change = np.abs(b.attention.astype(np.float64) - a.attention)
    distances = change.sum(axis=1) / 2
    values = {"change": _finite(distances.mean()), "largest": _finite(distances.max())}
    row = HeadRow(maps.stack, a.layer, a.head, values, dict.fromkeys(values))
    flat = np.nan_to_num(change).ravel()
    order = np.argsort(-flat, kind="stable")[:STRONGEST]
    strongest = []
    for place in order[flat[order] > 0]:
        query, key = (int(each) for each in np.unravel_index(place, change.shape))
        weights = float(a.attention[query, key]), float(b.attention[query, key])
        strongest.append(WeightChange(maps.first_query + query, key, *weights))
    return row, strongest


def _finite(value: np.floating) -> float | None:
    import numpy as np

    return float(value) if np.isfinite(value) else None
