"""`mask`: which keys each query sees, in a model, by a rule, by a function, or in code."""

from __future__ import annotations

from typing import Any

from attnscope.base.errors import OptionError
from attnscope.base.options import check_kind, with_keywords
from attnscope.base.process.progress import Progress, silent
from attnscope.masks.kinds import check_spelling, is_class, kind_of, named
from attnscope.masks.options import BlockOptions, CodeOptions, RuleOptions
from attnscope.masks.result import AttentionMasks
from attnscope.masks.summary import parse_block
from attnscope.model.masks.options import ModelMaskOptions


@with_keywords
def mask(
    subject: Any,
    *args: Any,
    model: ModelMaskOptions,
    rule: RuleOptions,
    code: CodeOptions,
    view: BlockOptions,
    progress: Progress = silent,
) -> AttentionMasks:
    """Find the keys that each query sees: in the layers of a model, by a rule or function, or in code.

    In a model, it is what the kernel of each layer receives when the model runs: a mask, or flags. So
    the tokens are those that ran, and what the kernel ignores is ignored here. Only the kernels `sdpa`
    and `eager` are called; others need not be installed.

    A rule has the sizes that are given, else those of its files.

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
        args: the tensors that code is called with, by position; or the text of a model, or texts.
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
    kind = kind_of(subject)
    if kind == "rules" and args:
        raise OptionError(f"a second argument is for models and code, and {named(subject)} is a rule.")
    if kind == "functions" and (args or code.inputs is not None or is_class(subject)):
        kind = "code"
    if kind == "models" and not args:
        check_spelling(subject, model)
    block = parse_block(view.block)
    it_is = "code" if kind == "code" else f"a {kind[:-1]}"
    check_kind([kind], [code, rule, model], f", and {named(subject)} is {it_is}")
    if kind == "models":
        from attnscope.masks.of_model import masks_of_model

        result = masks_of_model(subject, args, model, block, progress)
    elif kind == "code":
        from attnscope.masks.of_code import masks_of_code

        result = masks_of_code(subject, args, code, rule.init, block)
    else:
        from attnscope.masks.of_rule import masks_of_function, masks_of_rule

        result = (masks_of_rule if kind == "rules" else masks_of_function)(subject, rule, block)
    result.cell = view.cell
    return result
