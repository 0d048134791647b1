"""`audit`: which positions can influence which, in a model or in code."""

from __future__ import annotations

from typing import Any

from attnscope.auditing.options import AuditRun, CodeInput, ModelInput, Properties
from attnscope.auditing.result import Audit
from attnscope.base.options import check_kind, is_code, with_keywords
from attnscope.base.process.devices import check_seed
from attnscope.base.process.progress import Progress, silent


@with_keywords
def audit(
    target: Any,
    *args: Any,
    model: ModelInput,
    properties: Properties,
    code: CodeInput,
    run: AuditRun,
    progress: Progress = silent,
) -> Audit:
    """Find out which positions can influence which, and whether that is as it should be.

    Inputs are changed at some positions, and outputs compared at all: bit for bit, or else in float64,
    where rounding cannot be mistaken for influence. For a property that is broken, the result names the
    position, the first layer, and for code the line.

    A model's configuration and class say whether it should be causal, and what else. All properties that
    apply are tested anyway; one that is named and cannot be decided is listed in `undecided`. `expect`
    takes what `attnscope.mask` takes as a rule, several rules, a file, an array or a function.

    Args:
        target: a model, as in `attention_maps`; or code, as in `attnscope.inspect`: a function, class or
            module, itself or as `file.py:NAME`.
        args: the tensors that code is called with, by position; or the text of a model.
        progress: called with the progress of the work.

    Raises:
        AttnscopeError: the model or the code cannot be run, or options contradict each other.

    >>> import attnscope
    >>> def mean(x):
    ...     return x + x.mean(1, keepdim=True)
    >>> attnscope.audit(mean, inputs={"x": "2,7,8"}, causal=True)["causal"].status
    'broken'
    """
    check_seed(run.seed or 0)
    if is_code(target):
        check_kind(["code"], [model, run])
        from attnscope.auditing.of_code import audit_code

        return audit_code(target, args, code, properties, run)
    check_kind(["models"], [code])
    from attnscope.auditing.of_model import audit_model

    return audit_model(target, args, model, properties, run, progress)
