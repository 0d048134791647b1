"""A small result of every kind, and each of them without one of its optional parts."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import attnscope
from attnscope.auditing.result import Audit, Evidence, Influence, Line, Property
from attnscope.code.compare.result import (
    ComparedGradient,
    ComparedTensor,
    Comparison,
    Divergence,
    Site,
    WeightCopy,
)
from attnscope.code.trace.comments.annotate import diff
from attnscope.code.trace.result import CommentReport, ProgramRun, SourceDiff, Unknown, WrongComment
from attnscope.document.result import Check, Finding, Stats
from attnscope.masks.planes import MatrixPlane
from attnscope.masks.result import AttentionMasks
from attnscope.masks.summary import mask_of_planes
from attnscope.model.card.cards import Cards
from attnscope.model.card.result import CacheCheck, Card, Draft, ParameterCheck
from attnscope.model.effects.result import DirectSum, HeadEffects
from attnscope.model.files.result import Circuit, HeadWeights, Latent, WeightSlice
from attnscope.model.heads.result import HeadRow
from attnscope.model.maps.differences import MapDifferences, WeightChange
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Picture, Token
from attnscope.model.weights.differences import HeadDifferences
from attnscope.observe.trace import Condition, Crash, Exit, Operand, Source
from tests.model.answers.examples import chat, one_picture
from tests.model.heads.head_tables import head_table


def stats(array: np.ndarray) -> Stats:
    return Stats(float(array.min()), float(array.mean()), float(array.max()), float(array.std()), 0, 0)


def head(**more: Any) -> HeadWeights:
    rng = np.random.default_rng(0)
    weights = []
    for name in ("W_Q", "W_K"):
        array = rng.normal(size=(4, 12)).astype(np.float32)
        weights.append(
            WeightSlice(name, f"layer.1.{name}", (12, 12), 0, 4, 8, (4, 12), "float32", stats(array))
        )
        weights[-1].array = array
    return HeadWeights("a model", 1, 1, 2, 3, 3, 12, 4, weights, **more)


def differences(equal: bool = False) -> HeadDifferences:
    """Return the differences of two layers of three heads, with a small, a large and an infinite one."""
    metrics = {"W_Q": "relative change of W_Q", "b_Q": "relative change of b_Q", "rank_W_Q": "rank"}
    rows = [
        HeadRow("self", layer, head, dict.fromkeys(metrics, 0), dict.fromkeys(metrics))
        for layer in range(2)
        for head in range(3)
    ]
    if not equal:
        rows[1].values.update(W_Q=2e-7, rank_W_Q=1)
        rows[5].values.update(W_Q=0.25, b_Q=inf, rank_W_Q=12)
    dtypes = ("float32", "bfloat16")
    return HeadDifferences("a model", "b", None, dtypes, metrics, {"self": (2, 3)}, rows, ["a notice"])


def effects(**more: Any) -> HeadEffects:
    """Return effects of two layers of three heads, above and below 0."""
    metrics = {"zero": "the metric's change without it", "direct": "what it adds to the logit"}
    rows = [
        HeadRow("self", layer, head, {"zero": 0.4 - layer, "direct": head - 1.5}, dict.fromkeys(metrics))
        for layer in range(2)
        for head in range(3)
    ]
    rows[4].values["zero"] = None
    return HeadEffects(
        "a model",
        metrics,
        "logit of the answer, minus that of the other answer",
        1.25,
        {"self": (2, 3)},
        rows,
        answer=" Mary",
        against=" John",
        top_answers=[(" Mary", 0.7), (" <b>", 0.1)],
        tokens=4,
        sequence=[Token(f" word{i}") for i in range(4)],
        notices=["a notice"],
        **more,
    )


def effects_at_positions() -> HeadEffects:
    """Return effects at each of four positions, and what sums to the logit."""
    at = np.linspace(-1, 1, 48).reshape(2, 6, 4)
    return effects(
        positions={"zero": at[0], "direct": at[1]},
        places=[0, 1, 2, 3],
        direct=DirectSum(-3.0, {"embeddings": 2.0, "MLP 0": 2.5, "biases": -0.25}, 1.25, 0.0),
        correlation=0.9,
        corrupted=-0.5,
        blocked=-0.75,
    )


def maps(n: int = 5, heads: int = 3, **more: Any) -> AttentionMaps:
    rng = np.random.default_rng(0)
    tokens = [Token(f" word{i}") for i in range(n)]
    drawn = rng.random((heads, n, n)).astype(np.float32)
    drawn /= drawn.sum(-1, keepdims=True)
    own = [AttentionMap(0, i, i, each) for i, each in enumerate(drawn)]
    return AttentionMaps("a model", "self", 1, heads, heads, tokens, tokens, own, **more)


def map_differences(equal: bool = False, heads: int = 3) -> MapDifferences:
    """Return the differences of random maps, of two texts whose third tokens differ."""
    of_a, of_b = maps(heads=heads), maps(heads=heads)
    rows, strongest = [], {}
    for a, b in zip(of_a.maps, of_b.maps, strict=True):
        b.attention = a.attention if equal else a.attention[:, ::-1]
        distances = np.abs(b.attention - a.attention).sum(1) / 2
        values = {"change": float(distances.mean()), "largest": float(distances.max())}
        rows.append(HeadRow("self", a.layer, a.head, values, dict.fromkeys(values)))
        pair = float(a.attention[1, 4]), float(b.attention[1, 4])
        strongest[a.layer, a.head] = [] if equal else [WeightChange(1, 4, *pair)]
    of_b.key_tokens = of_b.query_tokens = [*of_b.key_tokens[:2], Token(" other"), *of_b.key_tokens[3:]]
    meanings = {"change": "the mean distance", "largest": "the largest distance"}
    sizes = {"self": (1, heads)}
    return MapDifferences("a model", "a model", None, of_a, of_b, meanings, sizes, rows, strongest)


def masks() -> AttentionMasks:
    """Return two masks of a model of three layers, which sees two sequences, with a check."""
    tokens = [[Token(f" word{i}") for i in range(4)], [Token("[CLS]", special=True)] * 4]
    sizes = {"n_batch": 2, "n_head": 1, "n_Q": 4, "n_K": 4}
    own = []
    for layers, visible in (([0, 2], np.tril(np.ones((4, 4), bool))), ([1], np.ones((4, 4), bool))):
        planes = [
            MatrixPlane([(0, 0)], 4, 4, visible),
            MatrixPlane([(1, 0)], 4, 4, visible & visible[2]),
        ]
        facts = {"stack": "self", "layers": layers, "n_layer": 3, "kernel": "sdpa", "received": "a mask"}
        facts |= {"query_tokens": tokens, "key_tokens": tokens, "kinds": ["full_attention"]}
        own.append(mask_of_planes(planes, sizes, (2, 2), **facts))
    checks = [Check.within("sdpa itself", 0.0, 0.0, "pairs that differ")]
    return AttentionMasks("a model", "a model", own, None, checks, ["a notice"])


def influence(n: int = 7, tokens: bool = True) -> Influence:
    """Return influence that should be causal: output 2 depends on input 3, and output 5 not on input 1."""
    measured = np.tril(np.full((n, n), 0.01)) + np.diag(np.full(n, 0.9))
    measured[2, 3], measured[5, 1] = 0.2, 0.0
    received = np.tril(np.ones((n, n), bool))
    received[5, 1] = False
    promised = np.tril(np.ones((n, n), bool)).tolist()
    names = [f" word{i}" for i in range(n)] if tokens else None
    return Influence("influence in layer 1", measured.tolist(), promised, received.tolist(), names)


def audit(*, broken: bool = True, **more: Any) -> Audit:
    """Return an audit of three properties; if one is broken, with its influence."""
    of = influence(**more)
    line = Line("/home/me/model.py", 7, "scores.softmax(-1)")
    evidence = Evidence("tokens from position 3 on", 2, 0.2, 3e-7, 1, "layers.1", line, of)
    causal = Property("causal", "broken", "is_causal=True", "changing tokens moves position 2", evidence)
    other = Property(
        "cache", "broken", "it takes a cache", "parts differ", Evidence("a cache", 3, 0.1, 0.0)
    )
    same = Property("batch", "holds", "every model", "another sequence moves nothing")
    found = [causal, other, same] if broken else [same]
    return Audit("a model", "Model", "float32", 7, 12.5, found, of.tokens or [], ["a notice"], [of])


def comparison(*, equal: bool = False) -> Comparison:
    """Return a comparison of four tensors, with weights, gradients, a check and a notice."""

    def compared(role: str, dims: str, shape: tuple[int, ...], largest: float, status: str) -> Any:
        site = Site(role, "q @ k.mT", "/home/me/model.py", 7, shape)
        index = dict.fromkeys(dims.split(), 0)
        axes, b = tuple(dims.split()), replace(site, name=None)
        return ComparedTensor(role, axes, shape, site, b, largest, index, 0.5, 1e-7, status)

    scores = compared("scores", "n_batch n_Q n_K", (2, 3, 4), 0.25, "different")
    out = compared("out", "n_batch n_Q d_V", (2, 3, 5), 0.1, "follows")
    gradients = [ComparedGradient("q", "Q", (2, 3, 6), 0.5, 1e-7, "different")]
    divergences = [Divergence("scores", "another scale", "1/√6, not 1/√3", 1e-8)]
    if equal:
        scores, out = (replace(each, largest=0.0, status="equal") for each in (scores, out))
        gradients, divergences = [replace(gradients[0], largest=0.0, status="equal")], []
    return Comparison(
        "sdpa",
        "model.py:attention",
        "equal" if equal else "different",
        sizes={"n_batch": 2, "n_Q": 3, "n_K": 4},
        dtype="float32",
        device="cpu",
        seed=0,
        tensors=[scores, out],
        divergences=divergences,
        explained=not equal,
        n_causes=12,
        weights=[WeightCopy("W_Q", "W_Q.weight", "", "qkv.weight", "rows 0 to 5", (6, 6))],
        gradients=gradients,
        checks=[Check.within("outputs", 0.0 if equal else 0.1, 1e-6)],
        notices=["a notice"],
    )


@cache
def a_card() -> Card:
    """Return the card of a small model with two kinds of layers, and everything that a card may have."""
    fields_of_config = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 24}
    fields_of_config |= {"num_hidden_layers": 3, "intermediate_size": 40, "vocab_size": 70}
    config = {"model_type": "llama", "torch_dtype": "bfloat16", "max_position_embeddings": 256}
    with TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(config | fields_of_config), encoding="utf-8")
        card = attnscope.card(path, memory="1G", flops="1T", bandwidth="1G")
    assert all([card.fit, card.work, card.weights, card.curve, card.reserved])
    return replace(
        card,
        name="a model",
        source="config.json",
        checks=[CacheCheck("full", 9, 1000, 1000, "bfloat16")],
        parameter_checks=[ParameterCheck("all", 10, 12)],
        findings=[Finding("a tensor contradicts config.json")],
        notices=["a notice"],
    )


def without_a_part(result: Any) -> Iterator[tuple[str, Any]]:
    """Yield a result without each of its optional parts, and without all; each with a name for it."""
    if not is_dataclass(result):
        return
    absent = {
        each.name: each.default if each.default is not MISSING else each.default_factory()
        for each in fields(result)
        if each.init and (each.default, each.default_factory) != (MISSING, MISSING)
    }
    absent.pop("tensors", None)  # the divergences of a comparison are about its tensors
    for name, value in absent.items():
        yield f"without {name}", replace(result, **{name: value})
    yield "without all of them", replace(result, **absent)


def complete_results() -> dict[str, Any]:
    """Return results with the optional parts that those of `every_result` lack, by a name for each."""
    results = every_result()
    trace, check = results["a trace"], Check.within("F.sdpa", 2.4e-07, 1e-5)
    notices = ["a notice"]
    required = Condition("d_K is a multiple of 4", True, "q.unflatten(-1, (4, -1))", "model.py", 3)
    operands = [Operand("q", ("n_Q", "d_K"), (3, 5)), Operand("k", None, (7, 4))]
    crash = Crash(
        "model.py", 2, "q @ k.mT", operands, "axis 1 of q and axis 1 of k disagree", "an error"
    )
    pixel = bytes.fromhex(
        "89504e470d0a1a0a0000000d494844520000000100000001080000000" "03a7e9b550000000a49444154789c63600000000200"
        "01e221bc330000000049454e44ae426082"
    )  # fmt: skip
    patches = [
        Token("[CLS]", special=True),
        *(Token(f"{row},{column}") for row in "01" for column in "01"),
    ]
    of_image = replace(maps(), picture=Picture(2, 2, 1, pixel), query_tokens=patches, key_tokens=patches)
    table = head_table({"self": (1, 3)})
    sorted_table = table.ranked("self", top=2)
    card = results["a card"]
    return {
        "a trace of a file": replace(
            trace, conditions=[required, Condition("d_V is even", False)], checks=[check],
            findings=[Finding("a mistake")], notices=notices, file="model.py",
            source=[Source("attention", 1, "def attention(q, k):\n    return q @ k.mT\n")],
        ),
        "a crash": replace(trace, crash=crash, file="model.py", notices=notices),
        "a trace that failed": replace(trace, tracing_error="an error", file="model.py"),
        "an exit": replace(trace, exit=Exit(3, "bye"), file="model.py"),
        "a checked head": head(stack="encoder", checks=[check]),
        "a latent head": head(latent=Latent(4, 2, 3, None, 6)),
        "maps of an image": of_image,
        "strongest keys": maps(query=2, top=2, first_query=0, notices=notices),
        "maps without a sink": maps(left_out=[0], checks=[check], whole_file=Path("maps.npz")),
        "a map with its steps": maps(heads=1, steps=trace),
        "maps with metrics": maps(collected=[maps()], metrics=table),
        "a corpus": replace(
            head_table({"self": (1, 3), "cross": (1, 3)}, sequences=9), partial=True, skipped=2,
            without_sink=True, weigh="value", notices=notices, why_no_maps="there are nine texts",
            unsaved=OSError("no space left"),
        ),
        "the smallest metrics": replace(sorted_table, reverse=True, maps=[maps()]),
        "the smallest differences": replace(differences().ranked("W_Q", top=2), reverse=True),
        "the smallest changes of maps": replace(
            map_differences().ranked("change", top=2), reverse=True, notices=notices
        ),
        "an experiment with uniform numbers": replace(results["an experiment"], draw="uniform"),
        "a mask in cells": replace(results["a mask"], cell=2),
        "a comparison of own weights": replace(results["a comparison"], weights_used="own"),
        "a card with a draft": replace(
            card, draft=Draft(1, "num_nextn_predict_layers", "full", 96, 960, 1000, 2000), n_device=2,
            unreserved={"SGLang": "it has no such layers"}, cache_dtype_from="--dtype",
        ),
        "a card without a count": replace(card, uncounted="its config.json names no sizes", weights=None),
        "several calls": ProgramRun("model.py:Attention", 3, 1, [trace, trace], ["a note"]),
        "comments that are not read": CommentReport(3, [], [Unknown(9, "x", "[a]")], {1, 4}, [12]),
    }  # fmt: skip


@cache
def every_result() -> dict[str, Any]:
    """Return a result of every kind, by a name for it."""
    trace = attnscope.compute("sdpa", nq=3, nk=4, dk=5, dv=6, batch=2, stats=True)
    measured = attnscope.measure_scaling([4, 16], nq=3, nk=4, batch=2)
    report = CommentReport(
        3, [WrongComment(7, "x", "[a]", "[b]", "line 7: the comment says x is [a], but")]
    )
    old, new = b"x = f(y)\n", b"x = f(y)  # [n_Q, d_K]\n"
    return {
        "a trace": trace,
        "a dry run": attnscope.dry_run("mha"),
        "a head": head(),
        "its circuits": head(circuits=[Circuit("QK", [3.0, 2.0, 0.5], 2.1, 3.6, 3.0)]),
        "one map": maps(heads=1),
        "maps": maps(),
        "metrics": head_table(),
        "ranked metrics": head_table().ranked("self", top=2),
        "effects": effects(),
        "ranked effects": effects().ranked("direct", top=2),
        "effects at positions": effects_at_positions(),
        "differences": differences(),
        "equal heads": differences(equal=True),
        "ranked differences": differences().ranked("W_Q", top=2),
        "changed maps": map_differences(),
        "changed maps of one head": map_differences(heads=1),
        "equal maps": map_differences(equal=True),
        "an experiment": measured,
        "an example": attnscope.worked_example(),
        "a mask": attnscope.mask("lengths:2,3", nq=3, nk=4, window=2),
        "masks of layers": masks(),
        "an audit": audit(),
        "an audit of what holds": audit(broken=False),
        "a comparison": comparison(),
        "a comparison of equals": comparison(equal=True),
        "a card": a_card(),
        "cards": Cards(["a model", "b"], [a_card(), a_card()], 256, 1),
        "a program": ProgramRun("model.py:Attention", traces=[trace], notes=["a note"]),
        "a check of comments": report,
        "an answer about a picture": one_picture(6),
        "an answer by segment": chat(),
        "a diff": SourceDiff("model.py", diff(old, new, "model.py")),
    }


def every_part() -> dict[str, Any]:
    """Return parts of results, by a name for them."""
    results = every_result()
    return {
        "a step": results["a trace"]["scores"],
        "statistics": results["a trace"]["scores"].stats,
        "a check": Check.within("F.sdpa", 2.4e-07, 1e-5),
        "a weight": results["a head"]["W_Q"],
        "a circuit": results["its circuits"].circuits[0],
        "a map": results["one map"].maps[0],
        "a changed weight": results["changed maps"].strongest[0, 1][0],
        "a property": results["an audit"].properties[0],
        "evidence": results["an audit"].properties[0].evidence,
        "influence": influence(),
        "one of several masks": results["masks of layers"].masks[0],
        "a row of metrics": results["metrics"].rows[0],
        "a row of the experiment": results["an experiment"].rows[0],
        "a compared tensor": results["a comparison"].tensors[0],
        "a compared gradient": results["a comparison"].gradients[0],
        "a kind of layers": results["a card"].kinds[0],
        "what an engine reserves": results["a card"].reserved[0],
        "what fits": results["a card"].fit,
        "a point of the curve": results["a card"].curve[0],
        "a check of the cache": results["a card"].checks[0],
        "a check of parameters": results["a card"].parameter_checks[0],
        "counted weights": results["a card"].weights,
        "a part of the weights": results["a card"].weights.attention[0],
        "work": results["a card"].work,
    }
