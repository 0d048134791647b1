"""`attnscope.card`: a model's attention and its cost, before it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnscope.checkpoints.headers import Headers, read_headers
from attnscope.checkpoints.model_files import ModelFiles, NoWeightsError, find_model_files
from attnscope.cost.anatomy import Anatomy, LayerAnatomy, LayerCache
from attnscope.cost.capacity import largest_batch, longest_context
from attnscope.cost.fields import with_known_type
from attnscope.cost.from_tensors import anatomy_of_checkpoint, contradictions
from attnscope.cost.kv_cache import BYTES, needed, reserved
from attnscope.cost.options import bytes_of, device_of, tokens_of
from attnscope.cost.weights import count_weights
from attnscope.cost.work import Device, work_of
from attnscope.errors import ModelError, OptionError
from attnscope.process.progress import Progress, silent, stage
from attnscope.results.card import CacheCheck, Card, CurvePoint, Fit, LayerKind, ParameterCheck, Reserve
from attnscope.results.cards import Cards
from attnscope.results.common import Finding
from attnscope.results.weights_count import WeightsCount
from attnscope.text import shortened

ASSUMED = "bfloat16"
"""The dtype of keys and values where config.json names none that they can have."""


def card(
    model: str | Path,
    *,
    context: str | int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    memory: str | int | None = None,
    flops: str | int | None = None,
    bandwidth: str | int | None = None,
    source: int | None = None,
    verify: bool = False,
    progress: Progress = silent,
) -> Card:
    """Return the anatomy of a model's attention, and what it costs, from its headers and config.json.

    No weight is read, and neither torch nor transformers is needed, unless config.json leaves out what
    transformers derives from other fields.

    Args:
        model: a folder; a config.json, a .safetensors or a .gguf file; or a name on the hub.
        context: tokens of each sequence: a number, or a text such as `128k`, where k is 1024. Default:
            the longest that the model was made for.
        batch: the number of sequences.
        dtype: the dtype of the keys and values: `float32`, `bfloat16`, `fp8`, …. Default: that of
            config.json.
        memory: the bytes of a memory: a number, or a text such as `80G`, where G is 2^30.
        flops, bandwidth: what the device computes and reads in a second, such as `989T` and `3.35TB`;
            they decide what bounds one more token.
        source: tokens of the encoder, for each sequence of an encoder-decoder model.
        verify: whether to build the model small, with random weights, and compare the formula with what
            transformers' own cache holds, and the parameters with its model's; this imports both.
            With this or `memory`, transformers' model counts the weights where config.json alone does
            not say them.
        progress: called with the progress of the work.

    Raises:
        ModelError: there is no such model, or what its cache is cannot be decided.
        OptionError: an option does not apply to this model.
    """
    request = _request(context, batch, dtype, memory, flops, bandwidth, source)
    known = _read(model, request.memory is not None or verify, progress)
    return _card(known, request, _checks(known, progress) if verify else _Checks())


def cards(
    models: Sequence[str | Path],
    *,
    context: str | int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    memory: str | int | None = None,
    flops: str | int | None = None,
    bandwidth: str | int | None = None,
    source: int | None = None,
    verify: bool = False,
    progress: Progress = silent,
) -> Cards:
    """Return the cards of several models, for the same context.

    Args:
        models: each as for `card`.
        context: tokens of each sequence. Default: the longest that all models were made for.
        batch, dtype, memory, flops, bandwidth, verify, progress: as for `card`.
        source: tokens of the encoder, for those that have one.

    Raises:
        ModelError, OptionError: as for `card`, with the name of the model.
    """
    request = _request(context, batch, dtype, memory, flops, bandwidth, source)
    known = []
    for each in models:
        with _names(each):
            known.append(_read(each, request.memory is not None or verify, progress))
            _context(known[-1].anatomy, request.n_tokens)
    if not known:
        raise OptionError("there are no models to compare.", hint="attnscope.cards(['minilm'])")
    if request.n_tokens is None:
        shortest = min(_context(each.anatomy, None) for each in known)
        request = replace(request, n_tokens=shortest)
    if source is not None and not any(each.anatomy.reads_source for each in known):
        raise OptionError("none of the models has an encoder, so --source does not apply.")
    found = []
    for name, model in zip(models, known, strict=True):
        own = request if model.anatomy.reads_source else replace(request, source=None)
        with _names(name):
            found.append(_card(model, own, _checks(model, progress) if verify else _Checks()))
    names = [Path(each).resolve().name if Path(each).exists() else str(each) for each in models]
    if len({*names}) < len(names):
        names = [str(each) for each in models]
    return Cards(names, found, found[0].context, batch)


@dataclass(frozen=True)
class _Request:
    """What the cost is computed for.

    Attributes:
        n_tokens: the tokens of each sequence; None: the longest that the model was made for.
        batch: the number of sequences.
        dtype: the dtype of keys and values; None: that of config.json.
        memory: the bytes that weights and caches must fit into; None: no limit.
        device: what runs the model; None: it is not known.
        source: the tokens of the encoder; None: as many as those of a sequence.
    """

    n_tokens: int | None
    batch: int
    dtype: str | None
    memory: int | None
    device: Device | None
    source: int | None


def _request(
    context: str | int | None,
    batch: int,
    dtype: str | None,
    memory: str | int | None,
    flops: str | int | None,
    bandwidth: str | int | None,
    source: int | None,
) -> _Request:
    if batch < 1:
        raise OptionError(f"the batch is {batch}, but takes 1 sequence or more.", hint="--batch 1")
    if dtype is not None and dtype not in BYTES:
        raise OptionError(
            f"{dtype!r} is not a dtype of keys and values.", hint=f"--dtype {', '.join(BYTES)}"
        )
    return _Request(
        None if context is None else tokens_of(context),
        batch,
        dtype,
        None if memory is None else bytes_of(memory),
        device_of(flops, bandwidth),
        source,
    )


@contextmanager
def _names(model: str | Path) -> Iterator[None]:
    """Add the name of the model to errors about it, if it is one of several."""
    try:
        yield
    except (ModelError, OptionError) as error:
        if Path(model).name in error.message:
            raise
        raise type(error)(f"{shortened(str(model))}: {error.message}", error.hint) from error


@dataclass(frozen=True)
class _Model:
    """A model, as it was read.

    Attributes:
        name: for people.
        anatomy: of its attention.
        read_from: what that was read from.
        weights: their sizes; None: not known.
        config: the content of config.json; None: it has none.
        findings: where its tensors contradict its configuration.
        missing: sentences about a model type that is not known, and about weights whose headers are not
            here, unless config.json alone was named.
        uncounted: why the parameters or the bytes of its weights are not known; None: they are.
    """

    name: str
    anatomy: Anatomy
    read_from: str
    weights: WeightsCount | None
    config: dict[str, Any] | None
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()
    uncounted: str | None = None


def _read(model: str | Path, build: bool, progress: Progress) -> _Model:
    """Read what config.json and the headers of a model say.

    Args:
        model: as for `card`.
        build: whether transformers builds it without values, to count weights that config.json alone
            does not say.
        progress: called with the progress of the work.
    """
    files = find_model_files(model)
    headers, missing = _headers(files, progress)
    original = files.config()
    config, read_as = (None, ()) if original is None else with_known_type(original)
    try:
        anatomy, read_from, findings = _anatomy(config, headers)
    except ModelError:
        if not read_as:
            raise
        config, read_as = original, ()  # its tensors may say it
        anatomy, read_from, findings = _anatomy(config, headers)
    weights, why = _weights(config, headers, anatomy, build, progress)
    return _Model(files.name, anatomy, read_from, weights, config, findings, (*read_as, *missing), why)


def _card(model: _Model, request: _Request, checks: _Checks) -> Card:
    """Return the card of a model."""
    anatomy, weights, batch = model.anatomy, model.weights, request.batch
    n_tokens = _context(anatomy, request.n_tokens)
    if request.source is not None and not anatomy.reads_source:
        raise OptionError(f"{model.name} has no encoder, so --source does not apply.", hint="--context")
    n_source = request.source or (anatomy.n_source or n_tokens if anatomy.cross else 0)
    cache_dtype = request.dtype or (anatomy.dtype if anatomy.dtype in BYTES else None)
    assumed, cache_dtype = cache_dtype is None, cache_dtype or ASSUMED
    layers, itemsize = (*anatomy.layers, *anatomy.cross), BYTES[cache_dtype]

    def one(length: int) -> int:
        return needed(layers, length, itemsize, n_source)

    def engines(length: int) -> list[Reserve]:
        return reserved(layers, length, cache_dtype, batch, n_source, anatomy.model_type)

    keeps = one(1) > 0
    notices = list(_notices(model, n_tokens))
    if anatomy.reads_source and not n_source:
        notices.append("keys and values of images are not counted (--source: the tokens of images)")
    if assumed and keeps:
        notices.append(f"it names no dtype of keys and values: {ASSUMED} is assumed (--dtype)")
    work = work_of(
        anatomy,
        n_tokens,
        batch,
        one(n_tokens) * batch,
        BYTES.get(anatomy.dtype or ASSUMED, BYTES[ASSUMED]),
        n_source=n_source,
        weights=weights,
        device=request.device,
    )
    return Card(
        name=model.name,
        model_type=anatomy.model_type,
        source=model.read_from,
        n_layer=anatomy.n_layer,
        d_feat=anatomy.d_feat,
        longest=anatomy.longest,
        dtype=anatomy.dtype,
        context=n_tokens,
        n_source=n_source,
        batch=batch,
        cache_dtype=cache_dtype,
        kinds=_kinds(anatomy, n_tokens, n_source, batch, itemsize),
        reserved=engines(n_tokens) if keeps else [],
        weights=weights,
        uncounted=model.uncounted if weights is None else None,
        curve=_curve(one, engines, n_tokens, batch) if keeps else [],
        fit=None if request.memory is None else _fit(one, request.memory, model, n_tokens, batch),
        work=work,
        checks=checks.caches,
        parameter_checks=checks.parameters,
        findings=list(model.findings),
        notices=[*notices, *work.notices, *checks.notices],
    )


def _notices(model: _Model, n_tokens: int) -> Iterator[str]:
    """Yield what is not known about a model, and whether it was made for so many tokens."""
    yield from model.missing
    yield from model.anatomy.uncertain
    if model.weights is not None:
        yield from model.weights.uncertain
    elif model.uncounted:
        yield model.uncounted
    longest = model.anatomy.longest
    if longest is not None and n_tokens > longest:
        yield f"it was made for at most {longest:,} tokens, and the context has {n_tokens:,}"


HALVED = 6
"""How often the context is halved for the curve."""


def _curve(
    one: Callable[[int], int], engines: Callable[[int], list[Reserve]], n_tokens: int, batch: int
) -> list[CurvePoint]:
    """Return what some lengths take.

    Args:
        one: returns the bytes that one sequence of a length needs.
        engines: returns what engines reserve for all sequences of a length.
        n_tokens: the context.
        batch: the number of sequences.
    """
    points = []
    for length in sorted({max(1, n_tokens >> times) for times in range(HALVED + 1)}):
        held = {each.engine: each.n_bytes for each in engines(length)}
        points.append(CurvePoint(length, one(length) * batch, held))
    return points


@dataclass(frozen=True)
class _Checks:
    """The formulas beside what transformers has.

    Attributes:
        caches: of keys and values; None: not compared.
        parameters: likewise.
        notices: why something could not be compared.
    """

    caches: list[CacheCheck] | None = None
    parameters: list[ParameterCheck] | None = None
    notices: tuple[str, ...] = ()


def _checks(model: _Model, progress: Progress) -> _Checks:
    """Compare the formulas with transformers' own cache and model."""
    from attnscope.cost.verify import verify_cache, verify_parameters
    from attnscope.process.memory import check_imports

    if model.config is None:
        raise OptionError(
            f"{model.name} has no config.json, which --verify needs.", hint="the folder of the model"
        )
    check_imports(transformers=True)
    with stage(progress, "running a small model …"):
        caches = verify_cache(model.config)
    with stage(progress, "building the model without weights …"):
        try:
            return _Checks(caches, verify_parameters(model.config))
        except ModelError as error:
            return _Checks(caches, [], (f"parameters are not compared: {error.message.rstrip('.')}",))


def _headers(files: ModelFiles, progress: Progress) -> tuple[Headers | None, tuple[str, ...]]:
    """Return the headers of a model's weights, None if it has none; and why, unless none were named."""
    try:
        return read_headers(files, progress=progress), ()
    except NoWeightsError as error:
        return None, () if files.is_config else (error.message.removesuffix("."),)


def _weights(
    config: dict[str, Any] | None,
    headers: Headers | None,
    anatomy: Anatomy,
    build: bool,
    progress: Progress,
) -> tuple[WeightsCount | None, str | None]:
    """Return the sizes of the weights, None if they are not known; and why their bytes are not.

    Args:
        config: the content of config.json.
        headers: of the weights, which are counted if they are there.
        anatomy: of the model's attention.
        build: as for `_read`.
        progress: called with the progress of the work.
    """
    if headers is not None:
        return count_weights(headers, config), "a file stores them in a format that is not known"
    if config is None:
        return None, "there is no config.json"
    from attnscope.cost.parameters import count_parameters

    is_quantised = "quantization_config" in config
    unstored = "config.json says that they are quantised" if is_quantised else "config.json has no dtype"
    try:
        return count_parameters(config, anatomy), unstored
    except ModelError as error:
        why = error.message.removesuffix(".")
    if not build:
        return None, f"{why} (--verify counts those of transformers' model)"
    from attnscope.cost.without_values import count_without_values
    from attnscope.process.memory import check_imports

    check_imports(transformers=True)
    with stage(progress, "building the model without weights …"):
        try:
            return count_without_values(config, None if is_quantised else anatomy.dtype), unstored
        except ModelError as error:
            return None, f"{why}; {error.message.removesuffix('.')}"


def _anatomy(
    config: dict[str, Any] | None, headers: Headers | None
) -> tuple[Anatomy, str, tuple[Finding, ...]]:
    """Return the anatomy, what it was read from, and where the tensors contradict that."""
    if headers is not None and headers.format == "GGUF":
        from attnscope.cost.gguf_anatomy import anatomy_of_gguf

        anatomy = anatomy_of_gguf(headers)
        found = contradictions(anatomy, headers, headers.metadata)
        return anatomy, "the header of a GGUF file", found
    return anatomy_of_checkpoint(config, headers)


def _context(anatomy: Anatomy, n_tokens: int | None) -> int:
    """Return the tokens of a sequence: a given number, or as many as the model was made for."""
    found = anatomy.longest if n_tokens is None else n_tokens
    if found is None:
        raise OptionError(
            "the model does not say how many tokens it was made for.", hint="--context 4096"
        )
    return found


def _kinds(anatomy: Anatomy, n_tokens: int, n_source: int, batch: int, itemsize: int) -> list[LayerKind]:
    """Return the kinds of layers, in the order in which they first appear."""
    groups: dict[LayerAnatomy, list[int]] = {}
    for layers in (anatomy.layers, anatomy.cross):
        for index, layer in enumerate(layers):
            groups.setdefault(layer, []).append(index)
    kinds = []
    for layer, indices in groups.items():
        cache = layer.cache
        one_more = LayerCache(cache.per_token, per_token_float32=cache.per_token_float32)
        kinds.append(
            LayerKind(
                indices,
                layer.kind,
                layer.n_head,
                layer.n_kv_head,
                layer.d_K,
                layer.d_V,
                layer.window,
                layer.rope_theta,
                layer.rope_scaling,
                list(layer.extras),
                one_more.nbytes(1, itemsize) * len(indices),
                cache.nbytes(n_tokens, itemsize, n_source) * len(indices) * batch,
            )
        )
    return kinds


def _fit(one: Callable[[int], int], memory: int, model: _Model, n_tokens: int, batch: int) -> Fit:
    """Return what fits into a memory beside the weights; `one` returns the bytes of one sequence."""
    if not one(1):
        raise OptionError("it keeps no keys and values, so --memory does not apply.", hint="--context")
    weights = model.weights
    if weights is None or weights.n_bytes is None:
        raise OptionError(
            f"--memory needs the size of the weights, which is unknown here: {model.uncounted}.",
            hint="the model with its weights, whose headers say their size",
        )
    free = memory - weights.n_bytes
    return Fit(
        memory,
        weights.n_bytes,
        longest_context(one, free, batch),
        largest_batch(one, free, n_tokens),
    )
