"""Masks as users write them, alone and combined."""

import re
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.attention import mask_rules as masks
from attnscope.attention import masks as textbook
from attnscope.attention.mask_rules import fitted, parse_masks, style_of
from attnscope.attention.positions import offset_of
from attnscope.base.errors import AttnscopeError
from attnscope.base.tensor_files import open_tensor

pytestmark = pytest.mark.usefixtures("on_command_line")

SIZES = {"n_batch": 3, "n_head": 2, "n_Q": 4, "n_K": 5}


def file_of(tmp_path, array, name="m.npy"):
    np.save(tmp_path / name, array)
    return str(tmp_path / name)


def built(texts, sizes=SIZES, *, style=None, fill=-inf, dtype="float32", align="top-left"):
    parsed = parse_masks(texts).applied(style=style, fill=fill, dtype=dtype, align=align)
    mask = parsed.build(sizes, dtype, "cpu")
    dims = parsed.dims(sizes).split()
    assert mask.shape == tuple(1 if axis == "1" else sizes[axis] for axis in dims)
    return mask, " ".join(dims)


def test_the_two_rooms_agree_on_what_hides_a_key():
    assert masks.HIDES == textbook.HIDES


def test_each_kind_is_the_textbooks():
    assert torch.equal(built(["causal"])[0], textbook.causal(4, 5))
    assert torch.equal(built(["window:1"])[0], textbook.window(4, 5, 1, 1))
    assert torch.equal(built(["window:2,0"])[0], textbook.window(4, 5, 2, 0))
    assert torch.equal(built(["window:2,"])[0], textbook.window(4, 5, 2, inf))
    assert torch.equal(built(["window:,0"])[0], textbook.causal(4, 5))
    assert torch.equal(built(["chunk:3"])[0], textbook.chunk(4, 5, 3))
    assert torch.equal(built(["prefix:3"])[0], textbook.prefix(4, 5, 3))
    mask, dims = built(["lengths:2,0,5"])
    assert torch.equal(mask, textbook.lengths([2, 0, 5], 5)[:, None])
    assert dims == "n_batch 1 1 n_K"


def test_several_masks_let_through_what_all_let_through():
    mask, dims = built(["causal", "window:1", "lengths:2,1,5"])
    expected = textbook.causal(4, 5) & textbook.window(4, 5, 1, 1) & textbook.lengths([2, 1, 5], 5)
    assert torch.equal(mask, expected[:, None])
    assert dims == "n_batch 1 n_Q n_K"


def test_a_mask_stands_where_the_queries_are_aligned():
    mask, _ = built(["causal"], align="bottom-right")
    assert torch.equal(mask, textbook.causal(4, 5, offset=1))


@pytest.mark.parametrize("text", ["window:99999999999999999999", "chunk:99999999999999999999"])
def test_what_is_wider_than_any_sequence_hides_nothing(text):
    assert built([text])[0].all()


def test_a_mask_begins_after_the_past():
    sizes = SIZES | {"n_past": 3}
    assert torch.equal(built(["causal"], sizes, align="after-past")[0], torch.ones(4, 5).tril(3).bool())


def test_each_sequence_has_its_queries_at_the_end_of_the_keys_that_all_lengths_leave_it(tmp_path):
    file = file_of(tmp_path, np.random.default_rng(0).random((3, 1, 5)) < 0.5)
    mask, dims = built(["window:1", file, "lengths:5,4,5", "lengths:4,4,5"], align="lengths")
    expected = textbook.lengths([4, 4, 5], 5) & torch.from_numpy(np.load(file))
    window = torch.stack([textbook.window(4, 5, 1, 1, offset=offset) for offset in (0, 0, 1)])
    assert torch.equal(mask, (expected & window)[:, None])
    assert dims == "n_batch 1 n_Q n_K"
    one, dims = built(["causal", "lengths:3"], {"n_Q": 2, "n_K": 5}, align="lengths")
    assert one.tolist() == [[True, True, False, False, False], [True, True, True, False, False]]
    assert dims == "n_Q n_K"


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((5,), "1 n_K"),
        ((4, 5), "n_Q n_K"),
        ((1, 5), "1 n_K"),
        ((3, 4, 5), "n_batch 1 n_Q n_K"),
        ((1, 4, 5), "1 1 n_Q n_K"),
        ((3, 2, 4, 5), "n_batch n_head n_Q n_K"),
        ((3, 1, 1, 5), "n_batch 1 1 n_K"),
        ((1, 2, 1, 5), "1 n_head 1 n_K"),
    ],
)
def test_a_file_is_broadcast_by_the_fields_rules(tmp_path, shape, dims):
    array = np.random.default_rng(0).random(shape) < 0.5
    mask, has = built([file_of(tmp_path, array)])
    assert has == dims
    aligned = array[:, None] if len(shape) == 3 else array
    scores = np.broadcast_to(aligned, (3, 2, 4, 5))
    assert torch.equal(mask.expand(3, 2, 4, 5), torch.from_numpy(scores.copy()))


def test_without_heads_or_batch_a_file_may_have_their_axes_as_one(tmp_path):
    file = open_tensor("mask", file_of(tmp_path, np.ones((1, 1, 4, 5), dtype=bool)))
    assert fitted(file, {"n_Q": 4, "n_K": 5}) == ["n_Q", "n_K"]
    assert fitted(file, {"n_batch": 3, "n_Q": 4, "n_K": 5}) == ["1", "n_Q", "n_K"]


@pytest.mark.parametrize(
    ("array", "style"),
    [
        (np.array([[True, False]]), "bool"),
        (np.array([[1, 0]]), "bool"),
        (np.array([[0, 0]]), "bool"),
        (np.array([[1.0, 0.0]]), "bool"),
        (np.array([[0.0, 0.0]]), "additive"),
        (np.array([[0.0, -inf]]), "additive"),
        (np.array([[1.0, 2.0]]), "additive"),
    ],
)
def test_a_files_own_values_tell_its_style(tmp_path, array, style):
    assert style_of(open_tensor("mask", file_of(tmp_path, array))) == style


def test_the_style_that_is_asked_for_decides(tmp_path):
    numbers = np.array([[0.0, 2.0, -inf, 1.0, 0.0]] * 4)
    path = file_of(tmp_path, numbers)
    assert built([path], style="bool")[0].tolist() == [[False, True, True, True, False]] * 4
    assert built([path], style="additive")[0].tolist() == numbers.tolist()
    ones = file_of(tmp_path, np.ones((4, 5), dtype=np.int64))
    assert built([ones], style="additive")[0].tolist() == [[1.0] * 5] * 4


@pytest.mark.parametrize("fill", [-inf, -1e9])
def test_together_with_an_additive_file_the_others_are_added_too(tmp_path, fill):
    bias = np.arange(20, dtype=np.float32).reshape(4, 5) / 4
    mask, _ = built(["causal", file_of(tmp_path, bias)], fill=fill)
    allowed = textbook.causal(4, 5)
    assert torch.equal(mask[allowed], torch.from_numpy(bias)[allowed])
    assert (mask[~allowed] == fill).all()


@given(
    sizes=st.fixed_dictionaries(
        {"n_Q": st.integers(1, 6), "n_K": st.integers(1, 6), "n_past": st.integers(0, 3)},
        optional={"n_batch": st.integers(1, 3), "n_head": st.integers(1, 2)},
    ),
    align=st.sampled_from(["top-left", "bottom-right", "after-past", "lengths"]),
    data=st.data(),
)
def test_rows_that_see_no_key_are_counted_without_building_the_mask(sizes, align, data):
    if "n_head" in sizes:
        sizes.setdefault("n_batch", 2)
    sizes["n_K"] += sizes["n_past"]
    if align == "lengths":
        sizes["n_K"] += sizes["n_Q"]
    number = st.integers(0, sizes["n_K"])
    lengths = st.lists(
        st.integers(sizes["n_Q"], sizes["n_K"]) if align == "lengths" else number,
        min_size=sizes.get("n_batch", 1),
        max_size=sizes.get("n_batch", 1),
    )
    kinds = st.one_of(
        st.just("causal"),
        st.builds("window:{},{}".format, st.integers(0, 3), st.integers(0, 3) | st.just("")),
        st.builds("window:,{}".format, st.integers(0, 3)),
        st.builds("chunk:{}".format, st.integers(1, 4)),
        st.builds("prefix:{}".format, number),
        lengths.map(lambda each: "lengths:" + ",".join(map(str, each))),
    )
    texts = data.draw(st.lists(kinds, min_size=1, max_size=4), label="masks")
    texts += ["lengths:" + ",".join([str(sizes["n_K"])] * sizes.get("n_batch", 1))]
    parsed = parse_masks(texts).applied(align=align, dtype="float32")
    mask = parsed.build(sizes, "float32", "cpu")
    lead = [sizes[axis] for axis in ("n_batch", "n_head") if axis in sizes]
    blind = ~mask.expand(*lead, sizes["n_Q"], sizes["n_K"]).any(-1)
    assert parsed.rows_without_keys(sizes) == int(blind.sum())
    query = data.draw(st.integers(0, sizes["n_Q"] - 1), label="query")
    assert parsed.rows_without_keys(sizes, query) == int(blind[..., query].sum())


@pytest.mark.parametrize(
    ("texts", "sizes", "blind"),
    [
        (["chunk:3", "window:2"], {"n_Q": 5, "n_K": 3}, 2),  # queries at -2 and -1 are in another chunk
        (["chunk:3", "lengths:2"], {"n_Q": 7, "n_K": 7, "n_past": 3}, 4),  # queries from 3 on are
    ],
)
def test_a_query_in_a_chunk_without_keys_sees_none(texts, sizes, blind):
    align = "top-left" if "n_past" in sizes else "bottom-right"
    parsed = parse_masks(texts).applied(align=align, dtype="float32")
    assert parsed.rows_without_keys(sizes) == blind
    assert int((~parsed.build(sizes, "float32", "cpu")).all(-1).sum()) == blind


def test_the_place_of_the_first_query_is_the_textbooks():
    assert offset_of(2, 5, align="bottom-right") == 3
    assert offset_of(5, 2, align="bottom-right") == -3
    assert offset_of(2, 5, align="top-left") == 0
    assert offset_of(4, 5, align="after-past", n_past=3) == 3
    assert offset_of(2, 5, align="lengths", lengths=[5, 2]) == (3, 0)


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy])
def test_an_array_is_a_mask_as_a_file_is(tmp_path, of):
    array = np.random.default_rng(0).random((4, 5)) < 0.5
    assert torch.equal(built(of(array))[0], built([file_of(tmp_path, array)])[0])
    together, _ = built([of(array), "causal"])
    assert torch.equal(together, built([file_of(tmp_path, array), "causal"])[0])


def test_how_masks_are_applied_changes_no_others():
    parsed = parse_masks("causal")
    applied = parsed.applied(align="bottom-right", dtype="float32", style="additive", fill=-1e9)
    assert (parsed.align, parsed.style, parsed.fill) == ("top-left", "bool", -inf)
    assert (applied.align, applied.style, applied.fill) == ("bottom-right", "additive", -1e9)


WINDOW = "--mask window:W, window:L,R, window:L, or window:,R"


def test_none_is_no_mask_and_stands_alone():
    assert not parse_masks("none")
    assert not parse_masks(["none"])
    with pytest.raises(AttnscopeError, match="--mask none excludes the other 1 of 2 masks"):
        parse_masks(["causal", "none"])


SYNTAX = "--mask causal, window:W, window:L,R, chunk:C, prefix:P, lengths:N,N,…, none, or a FILE"


@pytest.mark.parametrize(
    ("texts", "options", "message", "hint"),
    [
        (["nonsense"], {}, "'nonsense' is not a mask.", SYNTAX),
        (["casual"], {}, "'casual' is not a mask.", "--mask causal"),
        (["causal:3"], {}, "'causal:3' is not a mask.", "--mask causal"),
        (["window"], {}, "'window' is not a mask.", WINDOW),
        (["window:-1"], {}, "'window:-1' is not a mask.", WINDOW),
        (["window:1,2,3"], {}, "'window:1,2,3' is not a mask.", WINDOW),
        (["window:,"], {}, "'window:,' is not a mask.", WINDOW),
        (["chunk:0"], {}, "'chunk:0' is not a mask.", "--mask chunk:C"),
        (["prefix:x"], {}, "'prefix:x' is not a mask.", "--mask prefix:P"),
        (["lengths:"], {}, "'lengths:' is not a mask.", "--mask lengths:N,N,…"),
        (
            ["lengths:1,2"],
            {},
            "2 lengths (1,2) are given for 3 sequences.",
            "--mask lengths: with 3 numbers, or --batch 2",
        ),
        (["lengths:1,2,6"], {}, "a length of 6 is more than there are keys: n_K is 5.", None),
        (["prefix:6"], {}, "a prefix of 6 is more than there are keys: n_K is 5.", None),
        (
            ["causal"],
            {"fill": -5.0},
            "a mask fill of -5 does not hide keys.",
            "--mask-fill -inf, or -1e9",
        ),
        (
            ["causal"],
            {"fill": float("nan")},
            "a mask fill of nan does not hide keys.",
            "--mask-fill -inf, or -1e9",
        ),
        (
            ["causal"],
            {"fill": -1e9, "dtype": "float16"},
            "-1e+09 is out of the range of float16: its lowest number is -65504.",
            "--mask-fill -inf, or -65504",
        ),
    ],
)
def test_a_mask_that_is_none_is_refused(texts, options, message, hint):
    with pytest.raises(AttnscopeError) as caught:
        built(texts, **options)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("shape", "message", "hint"),
    [
        ((1, 3, 2, 4, 5), "mask in {} is 1×3×2×4×5, and a mask has 1 to 4 axes.", "n_K, or n_Q n_K, or n_batch n_Q n_K, or n_batch n_head n_Q n_K"),
        ((6,), "mask in {} has n_K 6 (axis 0 of 6), but the scores have n_K 5.", None),
        ((4, 7), "mask in {} has n_K 7 (axis 1 of 4×7), but the scores have n_K 5.", None),
        ((4, 1), "mask in {} has n_K 1 (axis 1 of 4×1), but the scores have n_K 5.", None),
        ((7, 4, 5), "mask in {} has n_batch 7 (axis 0 of 7×4×5), but the scores have n_batch 3.", None),
        ((3, 7, 4, 5), "mask in {} has n_head 7 (axis 1 of 3×7×4×5), but the scores have n_head 2.", None),
        (
            (3, 5),
            "mask in {} has n_Q 3 (axis 0 of 3×5), but the scores have n_Q 4.",
            "3×1×1×5, if each sequence has a row of its own for all queries",
        ),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_says_which_axis(tmp_path, shape, message, hint):
    path = file_of(tmp_path, np.ones(shape, dtype=bool))
    with pytest.raises(AttnscopeError) as caught:
        built([path])
    assert (caught.value.message, caught.value.hint) == (message.format(path), hint)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(AttnscopeError, match=re.escape(f"there is no file {tmp_path / 'm.npy'}")):
        parse_masks([str(tmp_path / "m.npy")])
