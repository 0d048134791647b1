"""`audit`: which positions can influence which, in a model or in code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnscope.errors import ModelError, OptionError
from attnscope.options import is_code, refuse
from attnscope.process.progress import Progress, silent, stage
from attnscope.results.audit import Audit

if TYPE_CHECKING:
    from attnscope.comparison.sides.pairing import Pairing

Texts = Sequence[str] | Mapping[str, Any]


def audit(  # long, because it takes the options of models and of code
    target: Any,
    text: str | None = None,
    *,
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
    length: int | None = None,
    tokenizer: Any = None,
    init: Texts | None = None,
    inputs: Texts | None = None,
    where: Sequence[str] | None = None,
    call: str | None = None,
    positions: str | None = None,
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
        length: the number of random tokens; None: 61.
        tokenizer: the tokenizer of a loaded model.
        init: arguments of a class.
        inputs: arguments of a call; None: the usual ones.
        where: equations between sizes.
        call: the method to call; None: `forward`.
        positions: the name of the axis of positions in `inputs`.
        thorough: whether to change tokens from every position on, and not only from some, and to test
            lengths around the edges of windows and chunks.
        dtype: the dtype to run a model in; None: as stored.
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
    if causal and bidirectional:
        raise OptionError("--causal and --bidirectional exclude each other.")
    if sinks and window is None:
        raise OptionError("--sinks is for positions outside of a window.", hint="--window N")
    requested = {
        "causal": causal,
        "bidirectional": bidirectional,
        "window": window is not None or chunk is not None,
        "coverage": coverage,
        "padding": padding,
        "packed": packed,
        "batch": batch,
        "cache": cache,
        "kernels": kernels,
    }
    widths = {"window": window, "chunk": chunk, "prefix": prefix, "sinks": sinks}
    limits = {name: value for name, value in widths.items() if value is not None}
    if is_code(target):
        refuse({"--text": text, "--length": length, "--dtype": dtype}, "is for models")
        from attnscope.comparison.sides.pairing import Pairing

        pairing = Pairing(init or (), inputs or (), list(where or ()), call, seed=seed or 0)
        return _audit_code(target, requested, limits, pairing, positions)
    of_code = {"--init": init, "--input": inputs, "--where": where, "--call": call}
    refuse(of_code | {"--positions": positions}, "is for code")
    if text is not None and length is not None:
        raise OptionError("--length is the number of random tokens, and there is a text.")
    return _audit_model(
        target, text, requested, limits, length, tokenizer, thorough, dtype, device, seed or 0, progress
    )


def _audit_model(
    model: Any,
    text: str | None,
    requested: Mapping[str, bool],
    limits: Mapping[str, int],
    length: int | None,
    tokenizer: Any,
    thorough: bool,
    dtype: str | None,
    device: str,
    seed: int,
    progress: Progress,
) -> Audit:
    from attnscope.checkpoints.loaded import find_model
    from attnscope.influence.audit_model import audit_probe, probe_of
    from attnscope.models.running.load import (
        as_model_error,
        device_of,
        load_config,
        load_model,
        tokenizer_of,
    )
    from attnscope.models.running.tokenize import read_text
    from attnscope.process.devices import kept_random_state
    from attnscope.process.verbosity import kept_verbosity

    checkpoint = find_model(model, tokenizer, None)
    with kept_verbosity(), kept_random_state(device), as_model_error(checkpoint):
        with stage(progress, f"loading {checkpoint.name} …"):
            config = load_config(checkpoint)
            loaded = load_model(checkpoint, config, dtype=dtype, device=device_of(checkpoint, device))
        if getattr(config.get_text_config(), "vocab_size", None) is None or hasattr(
            config, "vision_config"
        ):
            raise ModelError(
                f"{checkpoint.name} is a {type(loaded).__name__}, and only models that read text alone"
                " are audited."
            )
        reading = None if text is None else read_text(checkpoint, config, text)
        tokens = [each.text for each in reading.source] if reading is not None else []
        own = tokenizer_of(checkpoint)
        probe = probe_of(
            loaded,
            checkpoint.name,
            None if reading is None else reading.inputs["input_ids"],
            list(own.all_special_ids) if own is not None else [],
            tokens=tokens,
            length=length,
            causal=True if requested["causal"] else False if requested["bidirectional"] else None,
            limits=limits,
            thorough=thorough,
            seed=seed,
        )
        return audit_probe(probe, requested, tokens, progress)


def _audit_code(
    target: Any,
    requested: Mapping[str, bool],
    limits: Mapping[str, int],
    pairing: Pairing,
    positions: str | None,
) -> Audit:
    from attnscope.influence.audit_code import audit_code
    from attnscope.influence.code import code_of
    from attnscope.influence.measure.promises import Promise
    from attnscope.process.random_state import kept_global_random_state
    from attnscope.tracing.target.load import load_target

    loaded = load_target(target)
    if not any(requested.values()):
        raise OptionError(
            f"nothing says which positions of {loaded.name} should influence which.",
            hint="--causal, --bidirectional or --window N",
        )
    options = [name for name, value in requested.items() if value]
    source = ", ".join(f"--{name}" for name in options if name in ("causal", "bidirectional", "window"))
    promise = Promise(source, requested["causal"], **limits)
    with kept_global_random_state():
        return audit_code(code_of(loaded, pairing, positions), promise, requested)
