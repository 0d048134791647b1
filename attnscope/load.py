"""Read results that `save` has written: JSON records, and attention maps in a .safetensors file."""

from __future__ import annotations

import json
import types
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from attnscope.auditing.result import Audit
from attnscope.base.errors import FileError, no_such_file
from attnscope.code.compare.result import Comparison
from attnscope.document.result import Check, Result
from attnscope.formula.scaling.result import Scaling
from attnscope.masks.planes import MatrixPlane, Plane, RangePlane
from attnscope.masks.result import AttentionMask, AttentionMasks, Blocks
from attnscope.model.card.cards import Cards
from attnscope.model.card.result import Card
from attnscope.model.effects.result import DirectSum, HeadEffects
from attnscope.model.files.result import HeadWeights
from attnscope.model.heads.result import HeadRow, HeadTable
from attnscope.model.maps.result import METADATA, NUMBERS, WEIGHTS, AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Token
from attnscope.model.weights.differences import HeadDifferences
from attnscope.observe.trace import Trace

KINDS: dict[str, type] = {
    "trace": Trace,
    "head": HeadWeights,
    "scaling": Scaling,
    "comparison": Comparison,
    "audit": Audit,
    "card": Card,
    "cards": Cards,
}
"""The results whose records are their fields, by the schema's name."""

LOADABLE = "a .json file of save(), or a .safetensors file of attention maps"
"""The files that can be loaded, in a hint."""

NOT_COMPUTED = ("checks", "circuits", "source")
"""Fields that are None in Python, and empty lists in records, if they were not computed."""


def load(path: str | Path) -> Result:
    """Read a result that `save` has written.

    Args:
        path: a `.json` file of a trace, a head, maps, masks, a table of heads, effects, differences of
            heads, an experiment, a comparison, an audit, a card or cards; or a `.safetensors` file of
            maps, with their tokens and model.

    Returns:
        The result, without the tensors that a record leaves out. Maps from JSON have weights of six
        digits; those of a `.safetensors` file are exact. Tokens from JSON are not known to be special.

    Raises:
        FileError: the file cannot be read, or holds something else.
    """
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path} is a folder.", hint=LOADABLE)
    if not path.is_file():
        raise no_such_file(path)
    if path.suffix == ".safetensors":
        return _maps_of_tensors(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if path.suffix != ".json":
            raise FileError(f"{path} is not a record, which is JSON.", hint=LOADABLE) from error
        raise FileError(f"{path} is not a record: {error}.", hint=LOADABLE) from error
    schema = record.get("schema") if isinstance(record, dict) else None
    readers = {
        "heads": _table,
        "effects": _effects,
        "differences": _differences,
        "mask": _masks,
    }
    kind, _, version = str(schema).removeprefix("attnscope.").partition("/")
    try:
        if version == "1" and kind in KINDS:
            return _of_record(KINDS[kind], record)
        if version == "1" and kind in readers:
            return readers[kind](record)
        if version == "1" and kind in ("map", "maps") and "strongest" not in record:
            return _maps_of_record(path, record)
    except (KeyError, TypeError, ValueError, AttributeError, MemoryError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} is not a whole record of {schema}: {error}.") from error
    known = ", ".join(f"attnscope.{each}/1" for each in (*KINDS, *readers, "map", "maps"))
    raise FileError(f"{path} has the schema {schema}, which is not read back.", hint=known)


def _of_record(kind: type, record: dict[str, Any]) -> Any:
    """Return a dataclass from its record; fields that a record leaves out have their defaults."""
    hints = get_type_hints(kind)
    keys = {each.name: each.metadata.get("key", each.name) for each in fields(kind) if each.init}
    values = {name: _value(hints[name], record[key]) for name, key in keys.items() if key in record}
    for name in NOT_COMPUTED:
        if values.get(name) == []:
            values[name] = None
    return kind(**values)


def _value(hint: Any, value: Any) -> Any:
    """Restore a value of a record to what it was, according to the annotation of its field."""
    if value is None:
        return None
    if get_origin(hint) in (Union, types.UnionType):
        hints = [each for each in get_args(hint) if each is not type(None)]
        return _value(hints[0], value) if len(hints) == 1 else value
    if is_dataclass(hint) and isinstance(hint, type):
        return _of_record(hint, value)
    inner = get_args(hint)
    if get_origin(hint) is list:
        return [_value(inner[0], each) for each in value]
    if get_origin(hint) is tuple:
        several = len(inner) == 2 and inner[1] is ...
        hints = [inner[0]] * len(value) if several else list(inner)
        return tuple(_value(of, each) for of, each in zip(hints, value, strict=True))
    if get_origin(hint) is dict:
        return {name: _value(inner[1], each) for name, each in value.items()}
    return float(value) if hint is float else value


def _table(record: dict[str, Any]) -> HeadTable:
    """Return metrics of heads from their record."""
    rows = [_row(each, [name for name in record["metrics"] if name in each]) for each in record["heads"]]
    facts = ("model", "metrics", "sequences", "tokens", "partial", "skipped", "without_sink", "notices")
    known = {name: record[name] for name in facts}
    return HeadTable(**known, weigh=record.get("weigh"), layers=_stacks(record), rows=rows)


def _effects(record: dict[str, Any]) -> HeadEffects:
    """Return effects of heads from their record."""
    import numpy as np

    rows = [_row(each, list(record["metrics"])) for each in record["heads"]]
    names = ("model", "metrics", "metric", "answer", "against")
    facts = (*names, "prompts", "tokens", "places", "partial", "notices")
    numbers = ("baseline", "corrupted", "correlation", "blocked")
    direct = record["direct"]
    at = [each["at"] for each in record["heads"] if "at" in each]
    return HeadEffects(
        **{name: record[name] for name in facts},
        **{name: _value(float, record[name]) for name in numbers},
        layers=_stacks(record),
        rows=rows,
        dtype=record.get("dtype", ""),
        resolution=_value(dict[str, float], record.get("resolution", {})),
        top_answers=[(each["token"], each["probability"]) for each in record["top_answers"]],
        positions={name: np.array([each[name] for each in at], float) for name in record["metrics"]}
        if at
        else {},
        sequence=[Token(text) for text in record["sequence"]],
        direct=None if direct is None else _of_record(DirectSum, direct),
    )


def _differences(record: dict[str, Any]) -> HeadDifferences:
    """Return differences of heads from their record."""
    without_errors = {"errors": dict.fromkeys(record["metrics"])}
    rows = [_row(each | without_errors, record["metrics"]) for each in record["heads"]]
    facts = ("a", "b", "adapter", "metrics", "notices")
    return HeadDifferences(
        **{name: record[name] for name in facts},
        dtypes=_value(tuple[str, str], record["dtypes"]),
        layers=_stacks(record),
        rows=rows,
    )


def _row(record: dict[str, Any], metrics: list[str]) -> HeadRow:
    """Return the metrics of a head, and their standard errors, from their record."""
    values = {name: _value(float, record[name]) for name in metrics}
    errors = {name: _value(float, error) for name, error in record["errors"].items()}
    return HeadRow(record["stack"], record["layer"], record["head"], values, errors)


def _stacks(record: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the numbers of layers and heads of each stack."""
    return {stack: (each["n_layer"], each["n_head"]) for stack, each in record["stacks"].items()}


def _masks(record: dict[str, Any]) -> AttentionMasks:
    """Return masks from their record."""
    return AttentionMasks(
        title=record["title"],
        model=record["model"],
        masks=[_mask(each) for each in record["masks"]],
        checks=_value(list[Check], record["checks"]),
        notices=record["notices"],
    )


def _mask(record: dict[str, Any]) -> AttentionMask:
    """Return one mask from its record, whose tokens have only their texts."""
    taken = {name: value for name, value in record.items() if name not in ("n_pairs", "planes")}
    for axis in ("query_tokens", "key_tokens"):
        if taken[axis] is not None:
            taken[axis] = [[Token(text) for text in row] for row in taken[axis]]
    taken["blocks"] = _of_record(Blocks, taken["blocks"])
    planes, patterns = record["planes"], [each["pattern"] for each in record["planes"]]
    sizes = record["n_Q"], record["n_K"]
    return AttentionMask(**taken, planes=[_plane(each, *sizes) for each in planes], patterns=patterns)


def _plane(record: dict[str, Any], n_Q: int, n_K: int) -> Plane:
    """Return the keys that each query sees, from their ranges."""
    places = [(sequence, head) for sequence, head in record["places"]]
    rows = [[range(start, stop) for start, stop in row] for row in record["visible"]]
    if len(rows) != n_Q:
        raise ValueError(f"{len(rows)} rows for {n_Q} queries")
    if all(len(row) <= 1 for row in rows):
        return RangePlane(places, n_Q, n_K, [row[0] if row else range(0) for row in rows])
    import numpy as np

    matrix = np.zeros((n_Q, n_K), dtype=bool)
    for q, row in enumerate(rows):
        for keys in row:
            matrix[q, keys.start : keys.stop] = True
    return MatrixPlane(places, n_Q, n_K, matrix)


def _maps_of_record(path: Path, record: dict[str, Any]) -> AttentionMaps:
    """Return attention maps from their JSON record."""
    import numpy as np

    if record["pooling"] is not None or record["patches"] is not None:
        raise FileError(f"{path} holds maps that are pooled, or of a picture, which are not read back.")
    own = [
        AttentionMap(
            each["layer"],
            each["head"],
            each["kv_head"],
            np.array([[float(weight) for weight in row] for row in each["attention"]], np.float32),
        )
        for each in record.get("maps", [record])
    ]
    generated = {*record["generated"]}
    queries, keys = (
        [
            Token(text, segment, generated=start + i in generated)
            for i, (text, segment) in enumerate(
                zip(record[f"{axis}_tokens"], record[f"{axis}_segments"], strict=True)
            )
        ]
        for axis, start in (("query", record["first_query"]), ("key", 0))
    )
    facts = ("model", "stack", "n_layer", "n_head", "n_kv_head", "first_query", "notices")
    return AttentionMaps(
        **{name: record[name] for name in facts},
        numbers=_numbers(record),
        query_tokens=queries,
        key_tokens=keys,
        maps=own,
        left_out=record["without_sink"] or [],
        checks=[_of_record(Check, each) for each in record["checks"]] or None,
    )


def _numbers(record: dict[str, Any]) -> str:
    """Return what the numbers of maps are; records without it are older, and hold weights."""
    numbers = record.get("numbers", WEIGHTS.name)
    if numbers not in NUMBERS:
        raise ValueError(f"no maps have the numbers {numbers!r}")
    return str(numbers)


def _maps_of_tensors(path: Path) -> AttentionMaps:
    """Return attention maps from a .safetensors file, whose metadata names tokens and model."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            about = (file.metadata() or {}).get(METADATA)
            if about is None:
                raise FileError(
                    f"{path} has no metadata of attention maps.",
                    hint="safetensors.torch.load_file(path), which reads its tensors",
                )
            facts = json.loads(about)
            own = [
                AttentionMap(layer, head, kv_head, file.get_tensor(name))
                for name, layer, head, kv_head in facts.pop("maps")
            ]
            for axis in ("query_tokens", "key_tokens"):
                facts[axis] = [Token(**each) for each in facts[axis]]
            facts["numbers"] = _numbers(facts)
            return AttentionMaps(**facts, maps=own)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} cannot be read: {error}.") from error
