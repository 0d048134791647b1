"""`attnscope.card`: a model's attention and its cost, before it is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.options import with_keywords
from attnscope.base.process.progress import Progress, silent, stage
from attnscope.base.spelling import spelled, spelled_any
from attnscope.base.text import shortened
from attnscope.base.units import bytes_text, count_text
from attnscope.document.result import Finding
from attnscope.model.card.anatomy import LayerAnatomy, LayerCache, ModelAnatomy
from attnscope.model.card.cache_dtype import BYTES, CacheDtype, CheckpointDtype, checkpoint_dtype
from attnscope.model.card.cards import Cards
from attnscope.model.card.from_config import draft_layer, number_of_drafts
from attnscope.model.card.from_tensors import anatomy_of_checkpoint
from attnscope.model.card.kv_cache import Caches, Reserves, of_one_device
from attnscope.model.card.options import CostOptions
from attnscope.model.card.result import (
    BY_OPTION,
    CacheCheck,
    Card,
    CurvePoint,
    Draft,
    Fit,
    LayerKind,
    ParameterCheck,
    PartCount,
    WeightsCount,
)
from attnscope.model.card.tensor_parts import DRAFT
from attnscope.model.card.work import work_of
from attnscope.model.families.model_types import with_known_types
from attnscope.model.files.config import check_settings, text_part
from attnscope.model.files.model_files import ModelFiles, NoWeightsError, find_model_files

if TYPE_CHECKING:
    from attnscope.model.files.headers import Headers

ASSUMED = "bfloat16"
"""The dtype of keys and values where config.json names none that they can have."""


@with_keywords
def card(model: Any, *, cost: CostOptions, progress: Progress = silent) -> Card:
    """Return the anatomy of a model's attention, and what it costs, from its headers and config.json.

    No weight is read, and neither torch nor transformers is needed, unless config.json leaves out what
    transformers derives from other fields. `verify` imports both. With it or `memory`, transformers'
    model counts the weights where config.json alone does not say them.

    Args:
        model: a folder; a config.json, a .safetensors or a .gguf file; a name on the hub; or, in
            memory, a configuration of transformers, a loaded model, or the content of a config.json.
        progress: called with the progress of the work.

    Raises:
        ModelError: there is no such model, or what its cache is cannot be decided.
        OptionError: an option does not apply to this model.
    """
    cost.check()
    known = _read(model, cost, progress)
    return _card(known, cost, _context(known.anatomy, cost.n_tokens), progress)


@with_keywords
def cards(*models: Any, cost: CostOptions, progress: Progress = silent) -> Cards:
    """Return the cards of several models, for the same context.

    Without `context`, it is the longest that all models were made for. `source` applies to those that
    have an encoder.

    Args:
        models: each as for `card`; or one list of them.
        progress: called with the progress of the work.

    Raises:
        ModelError, OptionError: as for `card`, with the name of the model.
    """
    if len(models) == 1 and not isinstance(models[0], str | PathLike | dict):
        models = _several(models[0])
    cost.check()
    known, contexts = [], []
    for each in models:
        with _names(each):
            known.append(_read(each, cost, progress))
            contexts.append(_context(known[-1].anatomy, cost.n_tokens))
    if not known:
        raise OptionError("there are no models to compare.", hint="attnscope.cards(['minilm'])")
    if cost.source is not None and not any(each.anatomy.reads_source for each in known):
        raise OptionError(f"none of the models has an encoder, so {spelled('source')} does not apply.")
    found, n_tokens = [], min(contexts)
    for name, model in zip(models, known, strict=True):
        own = cost if model.anatomy.reads_source else replace(cost, source=None)
        with _names(name):
            found.append(_card(model, own, n_tokens, progress))
    names = [Path(each.name).resolve().name if Path(each.name).exists() else each.name for each in known]
    if len({*names}) < len(names):
        names = [each.name for each in known]
    return Cards(names, found, found[0].context, cost.batch)


def _several(models: Any) -> tuple[Any, ...]:
    """Return the models of a list; a configuration or a loaded model is one."""
    if hasattr(models, "config") or hasattr(models, "model_type"):
        return (models,)
    if isinstance(models, bytes | bytearray) or not isinstance(models, Iterable):
        raise OptionError(f"models is {shortened(repr(models))}, but takes several models.")
    return tuple(models)


@contextmanager
def _names(model: Any) -> Iterator[None]:
    """Add the name of the model to errors about it, if it is one of several."""
    try:
        yield
    except (ModelError, OptionError) as error:
        if not isinstance(model, str | PathLike) or Path(model).name in error.message:
            raise
        raise type(error)(f"{shortened(str(model))}: {error.message}", error.hint) from error


class _Model(NamedTuple):
    """A model, as it was read."""

    name: str  #: for people
    anatomy: ModelAnatomy
    read_from: str  #: what that was read from
    weights: WeightsCount | None  #: their sizes; None: not known
    config: dict[str, Any] | None  #: the content of config.json; None: it has none
    findings: tuple[Finding, ...] = ()  #: where its tensors contradict its configuration
    #: Sentences about a model type that is not known, and about weights whose headers are not here,
    #: unless config.json alone was named.
    missing: tuple[str, ...] = ()
    #: Why the parameters or the bytes of its weights are not known; None: they are.
    uncounted: str | None = None
    #: Of keys and values, as the checkpoint names it; None: it names none.
    cache_dtype: CheckpointDtype | None = None
    #: The content of config.json, where transformers reads it for itself.
    original: dict[str, Any] | None = None
    #: Whether transformers does not know it, and its fields alone say what it is.
    by_fields: bool = False
    n_bytes: int | None = None  #: of all weights, by an index whose files are not here; None: not known
    draft: PartCount | None = None  #: the sizes of its draft layers; None: they are not known
    #: The type that its config.json names, where it is read as another; None: that of `anatomy`.
    named: str | None = None


def _read(model: Any, cost: CostOptions, progress: Progress) -> _Model:
    """Read what config.json and the headers of a model say."""
    headers: Headers | None = None
    missing: tuple[str, ...] = ()
    n_bytes, beside = None, None
    if isinstance(model, str | PathLike):
        files = find_model_files(fspath(model))
        files.refuse_other_kinds()
        headers, missing, n_bytes = _headers(files, progress)
        name, original, beside = files.name, files.config(), files.quantisation()
    else:
        name, original = configuration_of(model)
    typed = None if original is None else with_known_types(original, cost.like)
    config = None if typed is None else typed.config
    try:
        anatomy, read_from, findings = anatomy_of_checkpoint(config, headers)
    except ModelError:
        if typed is None or not typed.notices or cost.like is not None:
            raise
        config, typed = original, None  # its tensors may say it
        anatomy, read_from, findings = anatomy_of_checkpoint(config, headers)
    weights: WeightsCount | None = None
    why: str | None
    if typed is not None and typed.by_fields and headers is None:
        why = "the weights are not counted: only the fields of attention are known"
    else:
        build = cost.verify or (cost.memory is not None and cost.weights is None)
        weights, why = _weights(config, beside, headers, anatomy, build, progress)
    cache_dtype = None if config is None else checkpoint_dtype(config, beside)
    notices = (*(typed.notices if typed is not None else ()), *missing)
    named = None if typed is None else typed.named
    return _Model(
        *(name, anatomy, read_from, weights, config, findings, notices, why, cache_dtype),
        original=original if typed is not None and not typed.notices else config,
        by_fields=typed is not None and typed.by_fields,
        n_bytes=n_bytes,
        draft=_draft_weights(config, beside, weights, anatomy, named),
        named=named,
    )


def configuration_of(model: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the fields of a configuration in memory, or of a loaded model's."""
    config = getattr(model, "config", model)
    fields = config if isinstance(config, dict) else None
    if fields is None and hasattr(config, "to_dict") and hasattr(config, "model_type"):
        fields = config.to_dict()
    if fields is None or not all(isinstance(name, str) for name in fields):
        raise OptionError(
            f"a {type(model).__name__} is not a model.",
            hint="a name, a path, a configuration of transformers, a loaded model, or a dict",
        )
    name = getattr(config, "name_or_path", "") or str(fields.get("model_type", "a configuration"))
    check_settings(Path(name), fields)
    return str(name), fields


def _reserved(caches: Caches, n_tokens: int) -> Reserves:
    """Count what engines reserve for all sequences of a length."""
    if not caches.needed(1):
        return Reserves([], {})
    found = caches.reserved(n_tokens)
    of_states = any(each.cache.constant or each.cache.constant_float32 for each in caches.layers)
    if not found.rows and not of_states:  # of such layers, only the engine's own rule is not known
        why = "".join(f", and {each}" for each in found.missing.values())
        raise OptionError(
            f"{caches.dtype.name} is llama.cpp's alone{why}.", hint=spelled_any("dtype", BYTES, ", ")
        )
    return found


def _card(model: _Model, cost: CostOptions, n_tokens: int, progress: Progress) -> Card:
    """Compute the card of a model, for so many tokens."""
    checks, parameter_checks, unchecked = _checks(model, progress) if cost.verify else (None, None, ())
    anatomy, batch = model.anatomy, cost.batch
    n_bytes = (
        model.n_bytes if cost.weights is None and cost.weights_dtype is None else cost.weights_bytes
    )
    weights = _resized(model.weights, n_bytes, cost.weights_dtype)
    if cost.source is not None and not anatomy.reads_source:
        raise OptionError(
            f"{model.name} has no encoder, so {spelled('source')} does not apply.",
            hint=spelled("context"),
        )
    n_source = cost.source or (anatomy.n_source or n_tokens if anatomy.cross else 0)
    dtype, dtype_from = _cache_dtype(model, cost)
    whole = (*anatomy.layers, *anatomy.cross)
    caches = Caches(
        of_one_device(whole, cost.tensor_parallel),
        *(dtype, batch, n_source, anatomy.model_type),
        config={} if model.config is None else text_part(model.config),
        is_gguf=anatomy.is_gguf,
        step=cost.engine_step,
    )
    work = work_of(
        anatomy,
        n_tokens,
        batch,
        replace(caches, layers=whole).needed(n_tokens) * batch,
        BYTES.get(anatomy.dtype or ASSUMED, BYTES[ASSUMED]),
        n_source=n_source,
        weights=weights,
        device=cost.device,
    )
    total = n_bytes or (None if weights is None else weights.n_bytes)
    fit, why_not = _fit(caches, cost, total, n_tokens)
    curve = []
    for length in sorted({max(1, n_tokens >> times) for times in range(HALVED + 1)}):
        by_engine = {each.engine: each.n_bytes for each in _reserved(caches, length).rows}
        curve.append(CurvePoint(length, caches.needed(length) * batch, by_engine))
    reserves = _reserved(caches, n_tokens)
    notices = [*_notices(model, weights, n_tokens), *why_not]
    notices.extend(_of_options(model, cost, weights, dtype, dtype_from))
    if anatomy.reads_source and not n_source:
        notices.append(
            f"keys and values of images are not counted ({spelled('source')}: the tokens of images)"
        )
    return Card(
        name=model.name,
        model_type=model.named or anatomy.model_type,
        source=model.read_from,
        n_layer=anatomy.n_layer,
        d_feat=anatomy.d_feat,
        longest=anatomy.longest,
        dtype=anatomy.dtype,
        context=n_tokens,
        n_source=n_source,
        batch=batch,
        cache_dtype=dtype.name,
        cache_dtype_from=dtype_from,
        n_device=cost.tensor_parallel,
        draft=_draft(model, caches, n_tokens, cost.tensor_parallel),
        kinds=_kinds(anatomy, n_tokens, n_source, batch, dtype, cost.tensor_parallel),
        reserved=reserves.rows,
        unreserved=reserves.missing,
        weights=weights,
        uncounted=model.uncounted if weights is None else None,
        curve=curve if caches.needed(1) else [],
        fit=fit,
        work=work,
        checks=checks,
        parameter_checks=parameter_checks,
        findings=list(model.findings),
        notices=[*notices, *work.notices, *unchecked],
    )


def _draft_weights(
    config: dict[str, Any] | None,
    beside: dict[str, Any] | None,
    weights: WeightsCount | None,
    anatomy: ModelAnatomy,
    named: str | None,
) -> PartCount | None:
    """Return the sizes of draft layers: of the headers, or by config.json; None: they are not known."""
    if weights is not None and weights.source == "headers":
        return next((part for part in weights.rest if part.name == DRAFT), None)
    if config is None or weights is None or not number_of_drafts(config)[0]:
        return None
    from attnscope.model.card.parameters import count_draft
    from attnscope.model.card.quantisation import UnknownFormatError, quantisation_of

    n_draft, _ = number_of_drafts(config)
    try:
        return count_draft(config, anatomy, named, n_draft, quantisation_of(config, beside))
    except UnknownFormatError:
        return count_draft(config, replace(anatomy, dtype=None), named, n_draft)


def _draft(model: _Model, caches: Caches, n_tokens: int, n_device: int) -> Draft | None:
    """Compute what draft layers take; None: there are none."""
    count, field = number_of_drafts(model.config or {})
    if not count:
        return None
    found, size = Draft(count, field), model.draft
    if size is not None:
        found = replace(found, n_parameter=size.n_parameter, n_bytes=size.n_bytes)
    if (layer := draft_layer(model.config or {}, model.anatomy, model.named)) is None:
        return found
    (own,) = of_one_device((layer,), n_device)
    per_token = LayerCache(own.cache.per_token, per_token_float32=own.cache.per_token_float32)
    itemsize = caches.dtype.itemsize(layer)
    return replace(
        found,
        kind=layer.kind,
        bytes_per_token=per_token.nbytes(1, itemsize) * count,
        cache_bytes=own.cache.nbytes(n_tokens, itemsize) * count * caches.batch,
    )


def _cache_dtype(model: _Model, cost: CostOptions) -> tuple[CacheDtype, str]:
    """Return the dtype of keys and values, and where that is said."""
    of_config = model.anatomy.dtype
    if cost.cache_dtype is not None:
        return cost.cache_dtype, BY_OPTION
    if model.cache_dtype is not None and model.cache_dtype.dtype is not None:
        return CacheDtype.both(model.cache_dtype.dtype), model.cache_dtype.field
    if of_config in BYTES:
        return CacheDtype.both(of_config), "config.json"
    return CacheDtype.both(ASSUMED), "assumed"


def _resized(
    weights: WeightsCount | None, n_bytes: int | None, dtype: str | None
) -> WeightsCount | None:
    """Resize the weights to the bytes or the dtype that are given instead of their own."""
    if weights is None or (n_bytes is None and dtype is None):
        return weights
    total = weights.n_parameter
    n_bytes = n_bytes or total * BYTES[dtype or ASSUMED]

    def share(part: PartCount) -> PartCount:
        return replace(part, n_bytes=part.n_parameter * n_bytes // max(total, 1))

    name = dtype or "a given size"
    return replace(
        weights,
        attention=tuple(map(share, weights.attention)),
        rest=tuple(map(share, weights.rest)),
        dtypes=(PartCount(name, total, n_bytes),),
        uncertain=(),
    )


def _of_options(
    model: _Model, cost: CostOptions, weights: WeightsCount | None, dtype: CacheDtype, dtype_from: str
) -> Iterator[str]:
    """Yield what the reader should know about options, and about the dtype of the cache."""
    anatomy, found = model.anatomy, model.cache_dtype
    if dtype_from == "assumed" and anatomy.cache_layers:
        named = f"{anatomy.dtype} for the weights, but no dtype" if anatomy.dtype else "no dtype"
        yield f"it names {named} of keys and values: {ASSUMED} is assumed ({spelled('dtype')})"
    if found is not None and found.dtype is None and dtype_from != BY_OPTION:
        yield (
            f"{found.field} asks for keys and values in {found.value}, whose size is not known here:"
            f" {dtype.name} is counted ({spelled('dtype')})"
        )
    if cost.device is not None and (weights is None or weights.n_bytes is None):
        yield (
            f"one more token has no time, as the size of the weights is not known ({spelled('weights')})"
        )
    if cost.engine_step is not None and not any(each.cache.window for each in anatomy.cache_layers):
        yield f"{spelled('engine_step')} changes nothing: no layer has a window"


def _notices(model: _Model, weights: WeightsCount | None, n_tokens: int) -> Iterator[str]:
    """Yield what is not known about a model, and whether it was made for so many tokens."""
    yield from model.missing
    yield from model.anatomy.uncertain
    if weights is not None:
        yield from weights.uncertain
        if weights.n_bytes is None:
            yield _no_size(weights, str(model.uncounted))
    elif model.uncounted:
        yield model.uncounted
    longest = model.anatomy.longest
    if longest is not None and n_tokens > longest:
        yield f"it was made for at most {longest:,} tokens, and the context has {n_tokens:,}"


def _no_size(weights: WeightsCount, why: str) -> str:
    """Return the sentence that the size of the weights is not known, with what is known of it."""
    known = [each.n_bytes for each in weights.dtypes if each.n_bytes is not None]
    if not known:
        return (
            f"the size of the weights is not known: {why} ({spelled('weights_dtype')},"
            f" {spelled('weights')})"
        )
    others = sum(each.n_parameter for each in weights.dtypes if each.n_bytes is None)
    return (
        f"the size of the weights is not known: {why} for the {count_text(others)} parameters that"
        f" are not quantised; the others take {bytes_text(sum(known))} ({spelled('weights')})"
    )


HALVED = 6
"""How often the context is halved for the curve."""


def _checks(
    model: _Model, progress: Progress
) -> tuple[list[CacheCheck], list[ParameterCheck], tuple[str, ...]]:
    """Compare the formulas with transformers' own cache and model, and say what is not compared."""
    from attnscope.base.process.memory import check_imports
    from attnscope.model.card.verify import verify_cache, verify_parameters, verify_reading

    config = model.original
    if config is None:
        raise OptionError(
            f"{model.name} has no config.json, which {spelled('verify')} needs.",
            hint="the folder of the model",
        )
    if model.by_fields:
        raise OptionError(
            f"transformers does not know the type of {model.name}, so that {spelled('verify')}"
            " compares nothing.",
            hint=f"the card, without {spelled(verify=True)}",
        )
    check_imports(transformers=True)
    with stage(progress, "running a small model …"):
        caches = [*verify_reading(config, model.anatomy), *verify_cache(config)]
    with stage(progress, "building the model without weights …"):
        try:
            return caches, verify_parameters(config), ()
        except ModelError as error:
            return caches, [], (f"parameters are not compared: {error.message.rstrip('.')}",)


def _headers(
    files: ModelFiles, progress: Progress
) -> tuple[Headers | None, tuple[str, ...], int | None]:
    """Return the headers of a model's weights, and why there are none, with the bytes of an index."""
    if files.is_config:
        return None, (), None
    from attnscope.model.files.headers import read_headers

    try:
        return read_headers(files, progress=progress), (), None
    except NoWeightsError as error:
        return None, (error.message.removesuffix("."),), error.n_bytes


def _weights(
    config: dict[str, Any] | None,
    beside: dict[str, Any] | None,
    headers: Headers | None,
    anatomy: ModelAnatomy,
    build: bool,
    progress: Progress,
) -> tuple[WeightsCount | None, str | None]:
    """Return the sizes of the weights, None if they are not known; and why their bytes are not.

    Args:
        build: whether transformers builds the model without values, to count weights that config.json
            alone does not say.
    """
    if headers is not None:
        from attnscope.model.card.checkpoint_tensors import count_weights

        return count_weights(headers, config), "a file stores them in a format that is not known"
    if config is None:
        return None, "there is no config.json"
    from attnscope.model.card.parameters import count_parameters
    from attnscope.model.card.quantisation import UnknownFormatError, quantisation_of

    dtype, quantisation, unstored = anatomy.dtype, None, "config.json has no dtype"
    try:
        quantisation = quantisation_of(config, beside)
    except UnknownFormatError as error:
        dtype, unstored = None, f"{error}, a format that is not known"
    try:
        return count_parameters(config, replace(anatomy, dtype=dtype), quantisation), unstored
    except ModelError as error:
        why = error.message.removesuffix(".")
    if not build:
        return None, f"{why} ({spelled('verify')} counts those of transformers' model)"
    from attnscope.base.process.memory import check_imports
    from attnscope.model.card.meta_model import count_without_values

    check_imports(transformers=True)
    with stage(progress, "building the model without weights …"):
        try:
            return count_without_values(config, dtype, quantisation), unstored
        except ModelError as error:
            return None, f"{why}; {error.message.removesuffix('.')}"


def _context(anatomy: ModelAnatomy, n_tokens: int | None) -> int:
    """Return the tokens of a sequence: a given number, or as many as the model was made for."""
    found = anatomy.longest if n_tokens is None else n_tokens
    if found is None:
        raise OptionError(
            "the model does not say how many tokens it was made for.", hint=spelled(context=4096)
        )
    return found


def _kinds(
    anatomy: ModelAnatomy, n_tokens: int, n_source: int, batch: int, dtype: CacheDtype, n_device: int
) -> list[LayerKind]:
    """Return the kinds of layers, in the order in which they first appear."""
    groups: dict[LayerAnatomy, list[int]] = {}
    for layers in (anatomy.layers, anatomy.cross):
        for index, layer in enumerate(layers):
            groups.setdefault(layer, []).append(index)
    kinds = []
    for layer, indices in groups.items():
        (of_device,) = of_one_device((layer,), n_device)
        cache, itemsize = of_device.cache, dtype.itemsize(layer)
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


def _fit(
    caches: Caches, cost: CostOptions, weights: int | None, n_tokens: int
) -> tuple[Fit | None, tuple[str, ...]]:
    """Compute what fits into a memory, None if that is not known or none was named; and say why."""
    memory = cost.memory_bytes or cost.cache_memory_bytes
    if memory is None:
        return None, ()
    flag = spelled("cache_memory") if cost.memory is None else spelled("memory")
    if not caches.needed(1):
        return None, (f"it keeps no keys and values, so {flag} does not apply",)
    taken = 0
    if cost.memory is not None:
        if weights is None:
            return None, (
                f"what fits is not known, as the size of the weights is not ({spelled('weights')})",
            )
        taken = ceil(weights / cost.tensor_parallel)
    free = memory - taken
    fit = Fit(
        memory,
        taken,
        caches.longest_context(free),
        caches.largest_batch(free, n_tokens),
        cache_only=cost.memory is None,
    )
    return fit, ()
