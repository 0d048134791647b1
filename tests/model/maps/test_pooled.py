"""Pooled maps, rows and strongest keys of long texts, against transformers' own eager attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from attnscope.base.errors import ModelError
from attnscope.model.files.checkpoint import find_checkpoint
from attnscope.model.maps.capture import HeadSelection
from attnscope.model.maps.collect import collect_maps
from attnscope.model.maps.pooled import Pooled, cells, collect_pooled, strongest
from attnscope.model.run import attention_hook as observe
from attnscope.model.run.forward import generate_tokens, give_target
from attnscope.model.run.load import load_config, load_model
from attnscope.model.run.tokenize import read_text
from attnscope.model.run.tokens import Token
from tests.model.run.readers import TRANSLATORS, WORDS, WRITERS, save_reader
from tests.sweeps import swept

LONG = {"max_position_embeddings": 6100}
FAMILIES = {
    "bert": {"max_position_embeddings": 700},
    "llama": LONG,
    "mistral": {**LONG, "sliding_window": 40},
    "gemma2": {**LONG, "sliding_window": 40},
    "gpt_oss": LONG,
    "albert": {"max_position_embeddings": 700},
    "bart": {"max_position_embeddings": 700},
    "t5": {},
}
"""Bidirectional, causal with shared key heads, in windows, with a soft cap, with sinks, and translators."""


def text_of(n, seed=0):
    """A text of n tokens, [CLS] and [SEP] included."""
    return " ".join(np.random.default_rng(seed).choice(WORDS[5:], n - 2))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A family's checkpoint and its model, as `attnscope model` loads them."""
    made = {}

    def load(family):
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            save_reader(family, folder, **FAMILIES.get(family, {}))
            checkpoint = find_checkpoint(str(folder))
            made[family] = checkpoint, load_model(checkpoint, load_config(checkpoint))
        return made[family]

    return load


def read(checkpoint, model, n, n_target=None, **more):
    target = None if n_target is None else text_of(n_target, seed=1)
    reading = read_text(checkpoint, model.config, text_of(n), target=target, **more)
    if target is not None:
        give_target(checkpoint, model, reading)
    return reading


def theirs(checkpoint, family, reading, stack):
    """The maps that transformers' own eager attention returns: a list of `n_head n_Q n_K`."""
    kind = AutoModelForCausalLM if family in WRITERS else AutoModel
    kind = AutoModelForSeq2SeqLM if family in TRANSLATORS else kind
    eager = kind.from_pretrained(checkpoint.folder, attn_implementation="eager").eval()
    alone = stack == "encoder"
    with torch.no_grad():
        output = (eager.get_encoder() if alone else eager)(**reading.inputs, output_attentions=True)
    name = "attentions" if alone or stack == "self" else f"{stack}_attentions"
    return [each[0] for each in output[name]]


def pooled_one_by_one(attention, queries, keys):
    """The mean and the largest weight of each cell: first of its rows, then of its columns."""
    means = torch.stack([attention[list(row)].double().mean(0) for row in queries])
    largest = torch.stack([attention[list(row)].amax(0) for row in queries])
    return (
        torch.stack([means[:, list(column)].mean(1) for column in keys], 1).float(),
        torch.stack([largest[:, list(column)].amax(1) for column in keys], 1),
    )


WHOLE = [
    (family, stack, rows)
    for family, stacks in {
        **dict.fromkeys(("bert", "llama", "mistral", "gemma2", "gpt_oss", "albert"), ("self",)),
        **dict.fromkeys(("bart", "t5"), ("encoder", "decoder", "cross")),
    }.items()
    for stack in stacks
    for rows in (1, 70, 10_000)
]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("family", "stack", "rows_at_once"),
    swept(
        WHOLE,
        [
            ("bert", "self", 10_000), ("llama", "self", 70), ("mistral", "self", 70), ("gpt_oss", "self", 10_000),
            ("bart", "decoder", 70), ("t5", "encoder", 70), ("t5", "cross", 10_000),
        ],
    ),
)  # fmt: skip
def test_pooled_maps_are_the_models_own_pooled(loaded, family, stack, rows_at_once):
    checkpoint, model = loaded(family)
    reading = read(checkpoint, model, 601, 259 if stack in ("decoder", "cross") else None)
    seen = collect_pooled(
        checkpoint,
        model,
        reading,
        HeadSelection(stack),
        Pooled(block_bytes=rows_at_once * 2 * 6 * 601 * 4),
    )
    [maps] = seen.stacks
    n_Q, n_K = len(maps.query_tokens), len(maps.key_tokens)
    assert (n_Q, n_K) == {"decoder": (259, 259), "cross": (259, 601)}.get(stack, (601, 601))
    pooling = maps.pooling
    for axis, n in ((pooling.queries, n_Q), (pooling.keys, n_K)):
        assert [i for cell in axis for i in cell] == list(range(n))
        assert {len(cell) for cell in axis[:-1]} == {3 if n == 601 else 2}
        assert len(axis[-1]) == 1
    own = theirs(checkpoint, family, reading, stack)
    assert len(maps.maps) == sum(len(attention) for attention in own)
    for each in maps.maps:
        mean, largest = pooled_one_by_one(own[each.layer][each.head], pooling.queries, pooling.keys)
        assert abs(torch.from_numpy(each.mean) - mean).max() <= 1e-6
        assert abs(torch.from_numpy(each.max) - largest).max() <= 1e-5
        assert each.attention is each.max


def test_each_pooling_can_be_shown(loaded):
    checkpoint, model = loaded("bert")
    reading = read(checkpoint, model, 300)
    [maps] = collect_pooled(checkpoint, model, reading, HeadSelection(layers=[1]), Pooled("mean")).stacks
    assert {each.layer for each in maps.maps} == {1}
    assert maps.pooling.shown == "mean"
    for each in maps.maps:
        assert each.attention is each.mean
        assert abs(each.mean.sum(axis=1) * 2 - 1).max() <= 1e-6  # 2 keys a cell


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "stack"), [("llama", "self"), ("mistral", "self"), ("t5", "cross")])
def test_rows_and_strongest_keys_are_those_of_the_whole_map(loaded, family, stack):
    checkpoint, model = loaded(family)
    reading = read(checkpoint, model, 601, 259 if stack == "cross" else None)
    one = HeadSelection(stack, [1], [2])
    [whole] = collect_maps(checkpoint, model, reading, one).stacks
    attention = whole.maps[0].attention
    pooled = Pooled(query=137, top=60, head=one, block_bytes=2**18)
    [maps] = collect_pooled(checkpoint, model, reading, HeadSelection(stack), pooled).stacks
    assert [each.layer for each in maps.maps if each.row is not None or each.top is not None] == [1]
    [each] = [each for each in maps.maps if (each.layer, each.head) == (1, 2)]
    assert abs(each.row - attention[137]).max() <= 1e-6
    keys, weights = each.top
    assert abs(weights - -np.sort(-attention, axis=1)[:, :60]).max() <= 1e-6
    assert abs(np.take_along_axis(attention, keys, axis=1) - weights).max() <= 1e-6
    nothing = weights == 0  # of keys that cannot be seen, the leftmost
    assert nothing.any() == (stack == "self")
    hidden = np.argsort(-attention, axis=1, kind="stable")[:, :60]
    assert (keys[nothing] == hidden[nothing]).all()


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 14), st.integers(0, 10**6))
def test_strongest_are_as_a_stable_sort_has_them(n_Q, n_K, k, seed):
    weights = np.random.default_rng(seed).integers(0, 4, (n_Q, n_K)).astype("float32") / 4
    weights[weights == 0.75] = np.nan
    order = np.argsort(-weights, axis=1, kind="stable")[:, :k]
    keys, values = strongest(torch.from_numpy(weights), k)
    assert keys.tolist() == order.tolist()
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(weights, order, axis=1))


def test_of_what_was_written_these_rows_are_kept(loaded):
    checkpoint, model = loaded("llama")
    model.config.use_cache = True
    reading = read(checkpoint, model, 400)
    generate_tokens(checkpoint, model, reading, 5)
    [whole] = collect_maps(checkpoint, model, reading, one := HeadSelection("self", [1], [2])).stacks
    first = whole.first_query
    assert first == 400
    pooled = Pooled(query=first + 1, top=3, head=one, block_bytes=2**18)
    [maps] = collect_pooled(checkpoint, model, reading, one, pooled).stacks
    assert maps.query_tokens == whole.query_tokens
    assert maps.pooling.queries == [
        range(i, i + 1) for i in range(first, first + len(whole.query_tokens))
    ]
    attention = torch.from_numpy(whole.maps[0].attention)
    mean, largest = pooled_one_by_one(
        attention, [range(i, i + 1) for i in range(len(attention))], maps.pooling.keys
    )
    assert abs(torch.from_numpy(maps.maps[0].mean) - mean).max() <= 1e-6
    assert abs(torch.from_numpy(maps.maps[0].max) - largest).max() <= 1e-6
    assert abs(maps.maps[0].row - whole.maps[0].attention[1]).max() <= 1e-6
    assert len(maps.maps[0].top[0]) == len(attention)


def test_cells_do_not_cross_the_border_of_two_texts(loaded):
    checkpoint, model = loaded("bert")
    reading = read_text(checkpoint, model.config, text_of(10), pair=text_of(401))
    [maps] = collect_pooled(
        checkpoint, model, reading, HeadSelection(layers=[0], heads=[1]), Pooled()
    ).stacks
    segments = [token.segment for token in maps.key_tokens]
    assert maps.pooling.keys[:6] == [range(i, i + 2) for i in range(0, 10, 2)] + [range(10, 12)]
    assert all(len({segments[i] for i in cell}) == 1 for cell in maps.pooling.keys)
    own = theirs(checkpoint, "bert", reading, "self")[0][1]
    mean, largest = pooled_one_by_one(own, maps.pooling.queries, maps.pooling.keys)
    assert abs(torch.from_numpy(maps.maps[0].mean) - mean).max() <= 1e-6
    assert abs(torch.from_numpy(maps.maps[0].max) - largest).max() <= 1e-5


@given(st.lists(st.integers(1, 90), min_size=1, max_size=2), st.integers(3, 40))
def test_cells_hold_every_token_once_in_order_and_fit(lengths, most):
    tokens = [Token("x", segment) for segment, length in enumerate(lengths) for _ in range(length)]
    made = cells(tokens, most)
    assert [i for cell in made for i in cell] == list(range(len(tokens)))
    assert len(made) <= most
    assert len(tokens) > most or len(made) == len(tokens)


class Largest(TorchDispatchMode):
    """Notes how many elements the largest tensor has that an operator makes."""

    numel = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for each in made if isinstance(made, list | tuple) else [made]:
            if isinstance(each, torch.Tensor):
                self.numel = max(self.numel, each.numel())
        return made


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("family", "n", "most"),
    swept([("llama", 6000, 1 / 4), ("mistral", 2000, 1), ("gpt_oss", 2000, 1)], [("mistral", 2000, 1)]),
)
def test_no_tensor_is_as_large_as_a_whole_map(loaded, family, n, most):
    """But the mask that some models make for themselves, `n n`: maps are that for each head."""
    checkpoint, model = loaded(family)
    reading = read(checkpoint, model, n)
    with Largest() as largest:
        pooled = Pooled(query=9, top=4, head=(one := HeadSelection("self", [1], [0])), block_bytes=2**22)
        seen = collect_pooled(checkpoint, model, reading, one, pooled)
    assert seen.stacks[0].maps[0].max.shape == (250,) * 2
    assert largest.numel <= most * n * n


def test_attention_that_is_not_called_by_name_is_not_pooled(tmp_path):
    save_reader("deberta-v2", tmp_path)
    checkpoint = find_checkpoint(str(tmp_path))
    model = load_model(checkpoint, load_config(checkpoint))
    reading = read(checkpoint, model, 12)
    with pytest.raises(ModelError, match="does not call attention through transformers' registry"):
        collect_pooled(checkpoint, model, reading, HeadSelection(), Pooled())


def test_attention_that_is_not_explained_is_not_pooled(loaded, monkeypatch):
    """A few tokens tell it, before the long text is read."""
    checkpoint, model = loaded("bert")
    right = observe.attention_inputs
    lengths = []

    def wrong(*given, **options):
        inputs = right(*given, **options)
        lengths.append(inputs.query.shape[-2])
        return replace(inputs, scale=30 * inputs.scale)

    monkeypatch.setattr(observe, "attention_inputs", wrong)
    with pytest.raises(ModelError, match="do not reproduce its output: in layer 1 they differ"):
        collect_pooled(checkpoint, model, read(checkpoint, model, 500), HeadSelection(), Pooled())
    assert set(lengths) == {48}


def test_narrow_models_are_pooled_in_float32(tmp_path):
    save_reader("llama", tmp_path, max_position_embeddings=400)
    checkpoint = find_checkpoint(str(tmp_path))
    model = load_model(checkpoint, load_config(checkpoint), dtype="bfloat16")
    [maps] = collect_pooled(
        checkpoint, model, read(checkpoint, model, 300), HeadSelection(layers=[0], heads=[0]), Pooled()
    ).stacks
    sums = maps.maps[0].mean.sum(axis=1) * 2
    assert maps.maps[0].mean.dtype == np.float32
    assert abs(sums - 1).max() <= 1e-6
