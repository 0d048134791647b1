"""`audit`: which positions can influence which, in a model or in code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnscope.auditing.options import AuditRun, CodeInput, ModelInput, Properties
from attnscope.auditing.result import Audit
from attnscope.base.errors import OptionError
from attnscope.base.options import Inputs, Texts, check_conflicts, group_of, is_code, refuse
from attnscope.base.process.devices import check_seed
from attnscope.base.process.progress import Progress, silent


def audit(
    target: Any,
    *args: Any,
    text: str | None = None,
    causal: bool = False,
    bidirectional: bool = False,
    window: int | None = None,
    chunk: int | None = None,
    prefix: int | None = None,
    sinks: int | None = None,
    padding: bool = False,
    packed: bool = False,
    batch: bool = False,
    cache: bool = False,
    kernels: bool = False,
    coverage: bool = False,
    expect: Any = None,
    length: int | None = None,
    tokenizer: Any = None,
    init: Texts | None = None,
    inputs: Inputs = None,
    where: Sequence[str] | None = None,
    call: str | None = None,
    positions: str | None = None,
    mask_input: Texts | str | None = None,
    thorough: bool = False,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int | None = None,
    progress: Progress = silent,
) -> Audit:
    """Find out which positions can influence which, and whether that is as it should be.

    Inputs are changed at some positions, and outputs compared at all: bit for bit, or else in float64,
    where rounding cannot be mistaken for influence. For a property that is broken, the result names the
    position, the first layer, and for code the line.

    Args:
        target: a model, as in `attention_maps`; or code, as in `attnscope.inspect`: a function, class or
            module, itself or as `file.py:NAME`.
        args: the tensors that code is called with, by position; or the text of a model.
        text: what a model reads; None: random tokens.
        causal: whether it should be causal: no position depends on later ones. Of a model, its
            configuration and class say so.
        bidirectional: whether positions should depend on earlier and later ones.
        window: how many keys a position should see at most, its own included.
        chunk: the length of the chunks within which positions should see each other.
        prefix: how many first positions every position should see.
        sinks: how many first positions should stay visible outside of the window.
        padding, packed, batch, cache, kernels, coverage: whether these should hold. All that apply are
            tested anyway; one that is named and cannot be decided is listed in `undecided`.
        expect: which keys queries should see in each layer, and no others: what `attnscope.mask` takes
            as a rule, several rules, a file, an array or a function `b, h, q_idx, kv_idx`.
        length: the number of random tokens; None: 61.
        tokenizer: the tokenizer of a loaded model.
        init: arguments of a class.
        inputs: arguments of a call, by name, as a list, or a tensor alone; or specifications; None: the
            usual ones.
        where: equations between sizes.
        call: the method to call; None: `forward`.
        positions: the input whose positions are changed, or the name of their axis; None: found.
        mask_input: the inputs that hide positions, also by name with the value that hides: 0, 1 or −∞;
            others are found by name, dtype, shape and use.
        thorough: whether to change tokens of long texts, too, from every position on, and not only from
            some, and to test lengths around the edges of windows and chunks.
        dtype: the dtype to run in; None: a model as stored, code in float64, or in float32 if it raises
            in float64.
        device: the device to run a model on.
        seed: the seed of random tokens, weights and inputs; None: 0.
        progress: called with the progress of the work.

    Raises:
        AttnscopeError: the model or the code cannot be run, or options contradict each other.

    >>> import attnscope
    >>> def mean(x):
    ...     return x + x.mean(1, keepdim=True)
    >>> attnscope.audit(mean, inputs={"x": "2,7,8"}, causal=True)["causal"].status
    'broken'
    """
    check_seed(seed or 0)
    arguments = locals()
    properties = group_of(Properties, arguments)
    check_conflicts([properties])
    run = group_of(AuditRun, arguments)
    if args and inputs is not None:
        raise OptionError("the inputs are given twice, by position and as inputs.")
    if is_code(target):
        of_models = {"--text": text, "--length": length, "tokenizer": tokenizer}
        refuse(of_models | {"--device": None if device == "cpu" else device}, "is for models")
        from attnscope.auditing.of_code import audit_code

        of_code = group_of(CodeInput, arguments, inputs=args or inputs)
        return audit_code(target, of_code, properties, run)
    of_calls = {"--init": init, "--input": inputs, "--where": where, "--call": call}
    refuse(of_calls | {"--positions": positions, "--mask-input": mask_input}, "is for code")
    if args:
        if text is not None or len(args) > 1 or not isinstance(args[0], str):
            raise OptionError("a model reads one text, or random tokens.", hint='text="…"')
        text = args[0]
    if text is not None and length is not None:
        raise OptionError("--length is the number of random tokens, and there is a text.")
    from attnscope.auditing.of_model import audit_model

    return audit_model(target, ModelInput(text, length), properties, run, tokenizer, progress)
