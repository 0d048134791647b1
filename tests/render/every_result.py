"""A small result of every kind."""

from functools import cache
from math import inf
from typing import Any

import numpy as np
from render.head_tables import head_table

import attnscope
from attnscope.masks.summary import mask_of_planes
from attnscope.results.audit import Audit, Evidence, Influence, Line, Property
from attnscope.results.comments import CommentReport, Lie, SourceDiff
from attnscope.results.common import Check, Stats
from attnscope.results.differences import HeadDifferences, MapDifferences, WeightChange
from attnscope.results.heads import HeadRow
from attnscope.results.maps import AttentionMap, AttentionMaps, Token
from attnscope.results.masks import AttentionMasks
from attnscope.results.planes import MatrixPlane
from attnscope.results.trace import ProgramRun
from attnscope.results.weights import Circuit, HeadWeights, WeightSlice
from attnscope.tracing.comments.annotate import diff


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


@cache
def every_result() -> dict[str, Any]:
    """Return a result of every kind, by a name for it."""
    trace = attnscope.compute("sdpa", nq=3, nk=4, dk=5, dv=6, batch=2, stats=True)
    measured = attnscope.measure_scaling([4, 16], nq=3, nk=4, batch=2)
    report = CommentReport(3, [Lie(7, "x", "[a]", "[b]", "line 7: the comment says x is [a], but")])
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
        "a program": ProgramRun("model.py:Attention", traces=[trace], notes=["a note"]),
        "a check of comments": report,
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
    }
