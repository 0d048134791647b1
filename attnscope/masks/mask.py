"""`mask`: which keys each query sees, in a model, by a rule, by a function, or in code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from attnscope.attention.mask_rules import KINDS, names_function, names_rule
from attnscope.base.errors import OptionError
from attnscope.base.options import Alignment, Texts, group_of, one_of, refuse
from attnscope.base.process.progress import Progress, silent
from attnscope.base.tensor_files import FORMATS
from attnscope.base.text import nearest
from attnscope.masks.options import BlockOptions, CodeOptions, RuleOptions
from attnscope.masks.result import AttentionMasks
from attnscope.masks.summary import parse_block
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.indices import Indices
from attnscope.model.masks.options import InputOptions, LayerOptions

WHAT = "causal, or another rule; file.py:NAME of a mask_mod; or a model with --text"

Kind = Literal["model", "rule", "function", "code"]


def mask(
    subject: Any,
    *args: Any,
    text: str | Sequence[str] | None = None,
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
    init: Texts | None = None,
    hides: int | None = None,
    inputs: Any = None,
    call: str | None = None,
    block: int | str | Sequence[int] | None = None,
    cell: int | None = None,
    progress: Progress = silent,
) -> AttentionMasks:
    """Find the keys that each query sees: in the layers of a model, by a rule or function, or in code.

    In a model, it is what the kernel of each layer receives when the model runs: a mask, or flags. So
    the tokens are those that ran, and what the kernel ignores is ignored here.

    In code, it is what one call of it does: a key is hidden if its mask leaves it no weight. A module
    runs as a copy in eval mode. Each attention has a mask, named by its module and line.

    >>> import attnscope
    >>> masks = attnscope.mask("causal", window=4, nq=16)
    >>> masks.masks[0].n_visible, masks.masks[0].pattern
    (58, 'causal, at most 4 keys')

    Args:
        subject: a model, as in `attention_maps`, with an input; a rule, or a list of them, all of which
            a key has to pass: `causal`, `window:W`, `window:L,R`, `chunk:C`, `prefix:P`, `none`,
            `lengths:N,N,…`, a file or an array; a function of `b, h, q_idx, kv_idx`, as torch's
            `flex_attention` takes it, or of a size, which returns a tensor, itself or as
            `file.py:NAME`; a `BlockMask`; or code, as in `attnscope.inspect`: a module, class or
            function.
        args: the tensors that code is called with, by position; or the text of a model.
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
        init: arguments of a class, or of a function that makes a mask: `window=4`, or by name.
        hides: which of 0 and 1 hides in the mask that a function returns; None: the one with which each
            query sees a key, else 0.
        inputs: the arguments of code by name, as a list, or a tensor alone; or specifications as
            `x=2,10,64`; None: for modules and classes, the usual ones.
        call: the method of a class to call; None: `forward`.
        block: the queries and keys in a block of a block-sparse kernel: a number, or both.
        cell: the queries and keys in a cell of the picture; None: as few as fit.
        progress: called with the progress of the work.

    Raises:
        OptionError: options contradict each other.
        SizeError: a mask does not fit the sizes, or is too large.
        ModelError: there is no such model or layer, or transformers cannot run it.
        SourceError: a function cannot be loaded, or raises an exception; or code computes no attention
            whose mask is known.
        FileError: a file cannot be read.
    """
    if isinstance(subject, list | tuple) and len(subject) == 1:
        [subject] = subject
    if args and inputs is not None:
        raise OptionError("the inputs are given twice, by position and as inputs.")
    if args:
        kind = kind_of(subject)
        if kind == "rule":
            raise OptionError(
                f"a second argument is for models and code, and {_named(subject)} is a rule."
            )
        if kind == "model":
            text = _positional_text(args, text)
        else:
            inputs = args
    texts = [text] if isinstance(text, str) else None if text is None else list(text)
    alignment = one_of(Alignment, "--align", align)
    arguments = locals()
    return mask_of(
        subject,
        group_of(RuleOptions, arguments, align=alignment, init=init or None),
        group_of(CodeOptions, arguments),
        group_of(InputOptions, arguments, text=texts),
        group_of(LayerOptions, arguments),
        group_of(BlockOptions, arguments),
        progress,
        (tokenizer, image_processor),
    )


def mask_of(
    subject: Any,
    rule: RuleOptions,
    code: CodeOptions,
    inputs: InputOptions,
    layers: LayerOptions,
    blocks: BlockOptions,
    progress: Progress,
    processors: tuple[Any, Any] = (None, None),
) -> AttentionMasks:
    """Find the masks of a model, a rule, a function or code, and refuse the options of the others."""
    kind = kind_of(subject)
    if kind == "function" and (code.inputs is not None or _is_class(subject)):
        kind = "code"
    block = parse_block(blocks.block)
    if blocks.cell is not None and blocks.cell < 1:
        raise OptionError(f"--cell is {blocks.cell}.", hint="--cell 1, or more")
    it_is = f"and {_named(subject)} is {'' if kind == 'code' else 'a '}{kind}"
    if kind != "code":
        refuse({"--call": code.call, "--input": code.inputs}, f"is for code, {it_is}")
    if kind == "model":
        _check_spelling(subject, inputs)
        refuse(_changed(rule), f"is for rules and functions, {it_is}")
        _check_inputs(subject, inputs)
        from attnscope.masks.of_model import masks_of_model

        result = masks_of_model(subject, inputs, layers, block, progress, processors)
    else:
        refuse(_changed(inputs) | _changed(layers), f"is for models, {it_is}")
        from attnscope.masks.of_rule import masks_of_function, masks_of_rule

        if kind == "code":
            refuse(_changed(replace(rule, init=None)), f"is for rules and functions, {it_is}")
            from attnscope.masks.of_code import masks_of_code

            result = masks_of_code(subject, code, rule.init, block)
        elif kind == "function":
            result = masks_of_function(subject, rule, block)
        else:
            refuse({"--init": rule.init}, f"is for functions, {it_is}")
            result = masks_of_rule(subject, rule, block)
    result.cell = blocks.cell
    return result


def kind_of(subject: Any) -> Kind:
    """Classify a subject: as a model, a rule, a function that makes a mask, or a module or class."""
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
    if isinstance(subject, Checkpoint) or hasattr(subject, "save_pretrained"):
        return "model"
    if hasattr(subject, "state_dict"):
        return "code"
    if hasattr(subject, "shape"):
        return "rule"
    raise OptionError(f"{_named(subject)} is neither a mask nor a model.", hint=f"an array; {WHAT}")


def _is_class(subject: Any) -> bool:
    """Check whether a function, or what a text names, is a class or a module, and so makes no mask."""
    from attnscope.code.load.load import load_target

    if hasattr(subject, "mask_mod"):
        return False
    found = load_target(subject).object if isinstance(subject, str) else subject
    return hasattr(found, "state_dict")


def _positional_text(args: Sequence[Any], text: Any) -> Any:
    """Return the text of a model that is given by position, one or several in a list.

    Raises:
        OptionError: there are several, or it is something else.
    """
    [first, *more] = args
    texts = [first] if isinstance(first, str) else first if isinstance(first, list | tuple) else [first]
    if more or text is not None or not all(isinstance(each, str) for each in texts):
        raise OptionError(
            "a model reads a text, or a list of several.", hint='text="…", or ids=… for its tokens'
        )
    return first


def _kind_of_text(text: str) -> Kind:
    """Classify what a text names."""
    if not text.strip():
        raise OptionError("the name of the mask is empty.", hint=WHAT)
    if names_rule(text):
        return "rule"
    return "function" if names_function(text) else "model"


def _named(subject: Any) -> str:
    """Name a subject in a message."""
    if isinstance(subject, list | tuple):
        return " ".join(map(_named, subject))
    if isinstance(subject, type):
        return f"the class {subject.__name__}"
    return str(subject) if isinstance(subject, str | os.PathLike) else f"this {type(subject).__name__}"


def _check_spelling(subject: Any, inputs: InputOptions) -> None:
    """Raise an OptionError for a model that has no input, does not exist, and is spelled like a rule."""
    if not isinstance(subject, str) or inputs.names or os.path.exists(subject):
        return
    place, colon, rest = subject.partition(":")
    if near := nearest(place, KINDS):
        raise OptionError(
            f"{subject!r} is neither a rule nor a model with an input.", hint=f"{near}{colon}{rest}"
        )


def _check_inputs(subject: Any, inputs: InputOptions) -> None:
    """Raise an OptionError if a model has no input, or several."""
    names, texts = inputs.names, inputs.several
    if not names:
        raise OptionError(
            f"{_named(subject)} is a model, whose masks depend on its input.", hint='--text "…"'
        )
    if len(names) > 1:
        raise OptionError(f"--{names[0]} and --{names[1]} are two inputs.", hint="one of them")
    for name in ("pair", "target"):
        if texts and getattr(inputs, name) is not None:
            raise OptionError(f"--{name} goes with one --text, and there are {len(texts)}.")
    if inputs.packed and not texts:
        raise OptionError("--packed puts several texts into one row.", hint='--text "…" --text "…"')


def _changed(group: Any) -> dict[str, Any]:
    """Return the options of a group that are not as they are by default, by their flags."""
    return {
        f"--{each.name.replace('_', '-')}": value
        for each in fields(group)
        if not isinstance(value := getattr(group, each.name), type(each.default))
        or value != each.default
    }
