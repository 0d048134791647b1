"""`mask`: which keys each query sees, in a model, by a rule, or by a function."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from attnscope.checkpoints.checkpoint import Checkpoint
from attnscope.checkpoints.indices import Indices
from attnscope.errors import OptionError
from attnscope.masks.options import InputOptions, LayerOptions, RuleOptions
from attnscope.masks.summary import parse_block
from attnscope.options import keywords, one_of, refuse
from attnscope.process.progress import Progress, silent
from attnscope.results.masks import AttentionMasks
from attnscope.tensor_files import FORMATS, is_matrix_text
from attnscope.text import nearest
from attnscope.textbook.inputs.mask_options import KINDS
from attnscope.textbook.options import Alignment

WHAT = "causal, or another rule; file.py:NAME of a mask_mod; or a model with --text"

Kind = Literal["model", "rule", "function"]


def mask(  # long, because it takes the options of models and of rules
    subject: Any,
    text: str | Sequence[str] | None = None,
    *,
    packed: bool = False,
    file: str | Path | None = None,
    ids: str | Sequence[int] | None = None,
    tokens: str | Sequence[str] | None = None,
    pair: str | None = None,
    target: str | None = None,
    image: Any = None,
    truncate: bool = False,
    layer: Indices = None,
    stack: str | None = None,
    kernel: str | None = None,
    verify: bool = False,
    dtype: str | None = None,
    device: str = "cpu",
    tokenizer: Any = None,
    image_processor: Any = None,
    nq: int | None = None,
    nk: int | None = None,
    past: int | None = None,
    batch: int | None = None,
    heads: int | None = None,
    window: int | None = None,
    align: str | None = None,
    init: Sequence[str] | Mapping[str, Any] | None = None,
    block: int | str | Sequence[int] | None = None,
    cell: int | None = None,
    progress: Progress = silent,
) -> AttentionMasks:
    """Return which keys each query sees: in the layers of a model, by a rule, or by a function.

    In a model, it is what the kernel of each layer receives when the model runs: a mask, or flags. So
    the tokens are those that ran, and what the kernel ignores is ignored here.

    >>> import attnscope
    >>> masks = attnscope.mask("causal", window=4, nq=16)
    >>> masks.masks[0].n_visible, masks.masks[0].pattern
    (58, 'causal, at most 4 keys')

    Args:
        subject: a model, as in `attention_maps`, with an input; a rule, or a list of them, all of which
            a key has to pass: `causal`, `window:W`, `window:L,R`, `chunk:C`, `prefix:P`, `none`,
            `lengths:N,N,…`, a file or an array; a function of `b, h, q_idx, kv_idx`, as torch's
            `flex_attention` takes it, itself or as `file.py:NAME`; or a `BlockMask`.
        text: what a model reads; several texts are a batch.
        packed: whether several texts share one row, where positions begin again with each of them.
        file, ids, tokens, pair, target, image, truncate: other inputs, as in `attention_maps`.
        layer, stack: the layers to show: an index, several, a range or `all`; None: all that run.
        kernel: the kernel for which the model makes masks; None: its default, or that of a loaded
            model. Only `sdpa` and `eager` are called; others need not be installed.
        verify: compare with what each kernel does.
        dtype, device: how the model is loaded.
        tokenizer, image_processor: those of a loaded model.
        nq, nk, past, batch, heads: the sizes of a rule's mask; None: those of its files, else 16
            queries, as many keys, one sequence and one head.
        window: hide keys that are this far away or further, as a model's `sliding_window` does.
        align: the position of queries among the keys: `top-left`, `bottom-right`, `after-past` or
            `lengths`.
        init: arguments, if the function makes a mask function: `window=4`, or by name.
        block: the queries and keys in a block of a block-sparse kernel: a number, or both.
        cell: the queries and keys in a cell of the picture; None: as few as fit.
        progress: called with the progress of the work.

    Raises:
        OptionError: options contradict each other.
        SizeError: a mask does not fit the sizes, or is too large.
        ModelError: there is no such model or layer, or transformers cannot run it.
        SourceError: a function cannot be loaded, or raises an exception.
        FileError: a file cannot be read.
    """
    if isinstance(subject, list | tuple) and len(subject) == 1:
        [subject] = subject
    of_rule = RuleOptions(nq, nk, past, batch, heads, window, one_of(Alignment, "--align", align), None)
    texts = [text] if isinstance(text, str) else None if text is None else list(text)
    of_input = InputOptions(texts, packed, file, ids, tokens, pair, target, image, truncate)  # type: ignore[arg-type]
    of_layers = LayerOptions(layer, stack, kernel, verify, dtype, device)  # type: ignore[arg-type]
    size = parse_block(block)
    if cell is not None and cell < 1:
        raise OptionError(f"--cell is {cell}.", hint="--cell 1, or more")
    kind = kind_of(subject)
    if kind == "model":
        _refuse(of_rule, init, f"is for rules and functions, and {_named(subject)} is a model")
        from attnscope.masks.of_model import masks_of_model

        processors = {"tokenizer": tokenizer, "image_processor": image_processor}
        _check_model(subject, of_input)
        result = masks_of_model(subject, of_input, of_layers, size, progress, **processors)
    else:
        why = f"is for models, and {_named(subject)} is a {kind}"
        _refuse(of_input, None, why)
        _refuse(of_layers, None, why)
        from attnscope.masks.of_rule import masks_of_function, masks_of_rule

        if kind == "function":
            result = masks_of_function(subject, of_rule, init, size)
        else:
            _refuse(None, init, f"is for functions, and {_named(subject)} is a rule")
            result = masks_of_rule(subject, of_rule, size)
    result.cell = cell
    return result


def kind_of(subject: Any) -> Kind:
    """Return what a subject is: a model, a rule, or a function that makes a mask."""
    if isinstance(subject, list | tuple):
        kinds = dict.fromkeys(map(kind_of, subject))
        if set(kinds) == {"rule"}:
            return "rule"
        if not kinds:
            raise OptionError("there is no mask.", hint=WHAT)
        other = next(each for each in subject if kind_of(each) != "rule")
        raise OptionError(
            f"several masks are rules, and {_named(other)} is not one.",
            hint="causal window:4, or a FILE",
        )
    if isinstance(subject, str):
        return _kind_of_text(subject)
    if isinstance(subject, os.PathLike):
        return "rule" if Path(subject).suffix in FORMATS else "model"
    if hasattr(subject, "mask_mod") or (callable(subject) and not hasattr(subject, "state_dict")):
        return "function"
    if hasattr(subject, "shape"):
        return "rule"
    if hasattr(subject, "state_dict") or isinstance(subject, Checkpoint):
        return "model"
    raise OptionError(f"{_named(subject)} has no mask.", hint=WHAT)


def _kind_of_text(text: str) -> Kind:
    """Return what a text names."""
    if not text.strip():
        raise OptionError("the name of the mask is empty.", hint=WHAT)
    place, colon, _ = text.partition(":")
    if text in {*KINDS, "none"} or (colon and place in KINDS) or is_matrix_text(text):
        return "rule"
    if Path(text).suffix in FORMATS or (colon and Path(text.rpartition(":")[0]).suffix in FORMATS):
        return "rule"
    if re.fullmatch(r".*\.py(:.*)?|[\w.]+:[\w.]+", text):
        return "function"
    return "model"


def _named(subject: Any) -> str:
    """Name a subject in a message."""
    if isinstance(subject, list | tuple):
        return " ".join(map(_named, subject))
    return str(subject) if isinstance(subject, str | os.PathLike) else f"this {type(subject).__name__}"


def _check_model(subject: Any, inputs: InputOptions) -> None:
    """Raise an OptionError if a model has no input, or several.

    A model that does not exist may be a rule that is spelled wrong.
    """
    names = ("text", "file", "ids", "tokens", "image")
    given = [f"--{name}" for name in names if getattr(inputs, name) is not None]
    if not given:
        near = nearest(subject.partition(":")[0], KINDS) if isinstance(subject, str) else None
        if near and not os.path.exists(subject):
            raise OptionError(
                f"{subject!r} is neither a rule nor a model with an input.",
                hint=f"{near}{subject[len(subject.partition(':')[0]) :]}",
            )
        raise OptionError(
            f"{_named(subject)} is a model, whose masks depend on its input.", hint='--text "…"'
        )
    if len(given) > 1:
        raise OptionError(f"{given[0]} and {given[1]} are two inputs.", hint="one of them")
    several = inputs.text is not None and len(inputs.text) > 1
    for name in ("pair", "target"):
        if several and getattr(inputs, name) is not None:
            raise OptionError(f"--{name} goes with one --text, and there are {len(inputs.text or ())}.")
    if inputs.packed and not several:
        raise OptionError("--packed puts several texts into one row.", hint='--text "…" --text "…"')


def _refuse(group: Any, init: Any, why: str) -> None:
    """Raise an OptionError if an option of a group is set, or `init`."""
    defaults = {each.name: each.default for each in fields(group)} if group is not None else {}
    options = keywords(group) if group is not None else {}
    options = {name: value for name, value in options.items() if value != defaults[name]}
    options["init"] = init or None
    refuse({f"--{name.replace('_', '-')}": value for name, value in options.items()}, why)
