"""The records of an answer, and the numbers in its tables."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from attnscope.document.markdown import markdown_document
from attnscope.document.result import Check
from attnscope.model.answers.document import (
    heading,
    segment_columns,
    share_text,
    strongest_head,
    token_columns,
)
from attnscope.model.answers.heat import density, grid_size, picture_shares, segment_shares, shares
from tests.model.answers.examples import (
    chat,
    cross,
    every_answer,
    long,
    one_head,
    one_picture,
    rows_of_segments,
    two_pictures,
)


def naive_density(picture, weights, height, width, left_out=()):
    """Average the density over samples of each cell: 12 × 12 points, which lie on no patch's edge."""
    total = np.zeros((height, width))
    n = 12
    columns, rows = picture.image.size
    for row in range(height):
        for column in range(width):
            for i in range(n):
                for j in range(n):
                    x = (column + (j + 0.5) / n) / width * columns
                    y = (row + (i + 0.5) / n) / height * rows
                    for patch in picture.patches:
                        left, top, right, bottom = patch.box
                        if left <= x < right and top <= y < bottom and patch.position not in left_out:
                            area = (right - left) * (bottom - top) / (columns * rows)
                            total[row, column] += float(weights[patch.position]) / area / n**2
    return total


@pytest.mark.parametrize("which", [0, 1])
def test_the_density_is_that_of_a_loop_over_points(which):
    """The edges of patches lie between the points, so that the loop is exact."""
    answer = two_pictures()
    picture = answer.pictures[which]
    left_out = [picture.patches[7].position]
    height, width = (6, 12) if which == 0 else (20, 5)
    expected = naive_density(picture, answer.weights[2], height, width, left_out)
    actual = density(picture, answer.weights[2], height, width, left_out=left_out)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (144, 192), (31, 90)])
def test_the_mean_density_is_the_weight_of_the_picture(size):
    answer = two_pictures()
    for i, picture in enumerate(answer.pictures):
        mean = density(picture, answer.weights[3], *size).mean()
        np.testing.assert_allclose(mean, picture_shares(answer)[3, i], rtol=1e-6)


def test_densities_of_tiles_and_of_the_whole_add():
    picture = two_pictures().pictures[0]
    weights = np.zeros(200)
    weights[[2, 74]] = 1  # the first patches of a tile and of the whole, which is twice as wide
    heat = density(picture, weights, 6, 12)
    assert heat[0, 0] == pytest.approx(72 + 36)
    assert heat[0, 1] == pytest.approx(36)
    assert np.count_nonzero(heat) == 2


def test_a_grid_over_a_picture_keeps_its_shape():
    wide, tall = two_pictures().pictures
    assert (grid_size(wide, 50), grid_size(tall, 60), grid_size(tall, 999)) == (
        (25, 50),
        (60, 45),
        (120, 90),
    )


@pytest.mark.parametrize("name", every_answer())
def test_shares_are_sums_of_weights(name):
    answer = every_answer()[name]
    for row, of_row in enumerate(shares(answer)):
        total = answer.weights[row].sum() if answer.pool == "max" else 1
        for segment, share in zip(answer.segments, of_row, strict=True):
            expected = sum(answer.weights[row, key] for key in segment.positions) / total
            assert share == pytest.approx(expected, abs=1e-6)
        assert sum(of_row) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", every_answer())
def test_the_record_is_json_and_holds_every_row(name):
    answer = every_answer()[name]
    record = json.loads(answer.to_json())
    assert record == answer.to_dict()
    assert record["schema"] == "attnscope.answer/1"
    n_row = len(answer.written)
    assert [each["query"] for each in record["written"]] == answer.queries
    assert [each["position"] for each in record["written"]] == [answer.first + i for i in range(n_row)]
    np.testing.assert_allclose(record["shares"], shares(answer), atol=1e-6)
    for picture, known in zip(record["pictures"], answer.pictures, strict=True):
        assert (picture["width"], picture["height"]) == known.image.size
        assert np.array_equal(
            np.float32(picture["weights"]), answer.weights[:, [p.position for p in known.patches]]
        )
        assert [tuple(box) for box in picture["boxes"]] == [patch.box for patch in known.patches]
    if answer.by_segment:
        sums = {(each["layer"], each["head"]): each["sums"] for each in record["sums"]}
        for i, layer in enumerate(answer.layers):
            for j, head in enumerate(answer.heads):
                assert np.array_equal(np.float32(sums[layer, head]), answer.sums[i, j])
    else:
        assert record["sums"] is None
    if answer.segment_rows is None:
        assert record["segment_rows"] is record["segment_shares"] is None
    else:
        np.testing.assert_allclose(record["segment_shares"], answer.segment_rows.mean((0, 1)), atol=1e-6)
        of_heads = np.float32([each["rows"] for each in record["segment_rows"]])
        assert np.array_equal(of_heads.reshape(answer.segment_rows.shape), answer.segment_rows)


def test_csv_has_a_row_for_each_two_segments():
    answer = rows_of_segments()
    rows = list(csv.DictReader("\n".join(answer.csv()).splitlines()))
    names = [segment.name for segment in answer.segments]
    assert [(row["query_segment"], row["segment"]) for row in rows] == [
        (a, b) for a in names for b in names
    ]
    shares_of_rows = np.array([float(row["share"]) for row in rows]).reshape(len(names), -1)
    np.testing.assert_allclose(shares_of_rows, segment_shares(answer), atol=1e-6)
    sizes = {segment.name: str(segment.n_token) for segment in answer.segments}
    assert all(row["n_query"] == sizes[row["query_segment"]] for row in rows)
    assert all(row["n_token"] == sizes[row["segment"]] for row in rows)


def test_a_layer_without_numbers_is_written_as_such():
    answer = chat()
    answer.sums[1] = np.nan
    record = json.loads(answer.to_json())
    assert record["sums"][4]["sums"][0][0] == "NaN"


def test_the_record_of_a_long_answer_holds_sums_and_no_weights_of_keys():
    answer = long(1000, 50)
    n_number = answer.sums.size + len(answer.written) * len(answer.segments)
    assert len(answer.to_json()) < 20_000 + 14 * n_number < answer.weights.size * 14


def test_csv_has_a_row_for_each_token_and_patch():
    answer = two_pictures()
    rows = list(csv.DictReader("\n".join(answer.csv()).splitlines()))
    assert len(rows) == 7 * 133
    row = rows[2 * 133 + 110]  # the third word; the third patch of the second picture
    assert row["picture"] == "picture 2"
    assert row["key"] == "114"
    assert row["token"] == " wide"
    assert [float(row[side]) for side in ("left", "top", "right", "bottom")] == [36, 15, 54, 33]
    assert np.float32(row["weight"]) == answer.weights[2, 114]
    assert (row["query"], row["position"]) == ("140", "141")


@pytest.mark.parametrize("answer", [chat(), two_pictures(by_segment=True), cross()])
def test_csv_has_a_row_for_each_token_and_segment(answer):
    rows = list(csv.DictReader("\n".join(answer.csv()).splitlines()))
    n = len(answer.segments)
    assert len(rows) == len(answer.written) * n
    for i, row in enumerate(rows):
        assert row["segment"] == answer.segments[i % n].name
        assert float(row["share"]) == pytest.approx(shares(answer)[i // n, i % n], abs=1e-6)


def test_the_heading_says_which_row_and_which_heads():
    answer = one_picture(6)
    title, rows, left_out = heading(answer)
    assert title == "a model · mean over all 3 layers and 4 heads"
    assert rows.startswith("12 tokens written, from position 45 · the row of the token at position t is")
    assert rows.endswith("that of query t − 1, which wrote it")
    assert left_out.startswith("left out of the colours: <s> 0 (")
    reading = replace(answer, queries=[each + 1 for each in answer.queries], sinks=[])
    assert heading(reading)[1].endswith("that of its own query")
    assert len(heading(reading)) == 2
    assert heading(replace(answer, layers=[1], heads=[0, 2]))[0].endswith(
        "mean over layer 1 of 3 and heads 0, 2 of 4"
    )
    assert heading(replace(answer, layers=[1], heads=[2]))[0].endswith("layer 1 of 3, head 2 of 4")


def test_the_heading_says_how_much_weight_is_left_out():
    answer = one_picture(6)
    texts = re.findall(r"([\d.]+) % of the weight", heading(answer)[2])
    expected = [answer.weights[:, 0].mean(), answer.weights[:, answer.sinks[1:]].sum(1).mean()]
    assert [float(text) for text in texts] == pytest.approx([100 * e for e in expected], abs=0.05)
    assert "2 patches that every row reads" in heading(answer)[2]


def cells_of(columns, key):
    [column] = [each for each in columns if each.key == key]
    return column.texts()


def test_each_token_has_its_query_its_shares_and_its_strongest_patch():
    columns = token_columns(one_picture(6))
    assert cells_of(columns, "position")[1] == "45 → 46"
    assert cells_of(columns, "log_probability")[0] == "-0.01"
    assert cells_of(columns, "strongest_patch")[1] == "x 128–160 y 24–48"  # the sun
    assert not [each for each in columns if each.key == "reads_most"]
    of_words = token_columns(chat(by_segment=False))
    assert all(text.split()[0].isdigit() for text in cells_of(of_words, "reads_most"))


def test_tokens_of_a_picture_without_a_patch_have_a_column():
    answer = one_picture(6)
    assert not [each for each in token_columns(answer) if each.key == "around patches"]
    picture = answer.pictures[0]
    fewer = replace(answer, pictures=[replace(picture, patches=picture.patches[:-6])])
    cells = cells_of(token_columns(fewer), "around patches")
    expected = answer.weights[:, 35:41].sum(1)
    assert [float(cell[:-2]) for cell in cells] == pytest.approx((100 * expected).tolist(), abs=0.06)


def test_a_left_out_key_is_not_the_strongest():
    answer = chat(by_segment=False)
    assert answer.weights[5].argmax() == 0
    assert cells_of(token_columns(answer), "reads_most")[5].split()[0] != "0"


def test_the_mean_per_key_of_even_attention_is_one():
    answer = chat()
    n = len(answer.tokens)
    even = np.tril(np.ones((n, n), dtype=np.float32))[answer.queries]
    even /= even.sum(1, keepdims=True)
    times = cells_of(segment_columns(replace(answer, weights=even)), "per_key")
    assert times == ["1.00 ×"] * len(answer.segments)
    crossed = cross()
    crossed.weights[:] = 1 / 6
    assert cells_of(segment_columns(crossed), "per_key") == ["1.00 ×"] * 2


def test_the_strongest_head_of_a_segment_is_found():
    answer = chat()
    answer.sums[2, 1, :, 3] = 0.99
    assert strongest_head(answer, 3) == (2, 1, pytest.approx(0.99))
    answer.sums[2] = np.nan
    assert strongest_head(answer, 3)[0] != 2
    answer.sums[:] = 0
    assert strongest_head(answer, 3) is None
    assert not [each for each in segment_columns(one_head()) if each.key == "strongest"]


def test_markdown_has_the_heading_tables_notices_and_checks():
    answer = replace(
        two_pictures(), notices=["a notice"], checks=[Check.within("eager attention", 1e-8, 1e-6)]
    )
    text = markdown_document(answer.document())
    assert "**a model · mean over all 3 layers and 4 heads**" in text
    assert "| picture 1 | picture 2 | strongest patch |" in text
    assert "picture 2: no patch covers 25.0 % of it" in text
    assert "a notice" in text
    assert "| eager attention | 1e-08 | 1e-06 | holds |" in text
    assert "| document 2 | 18 | 43.1 % |" in markdown_document(chat().document())


@pytest.mark.parametrize("make", [chat, one_picture, cross])
@pytest.mark.parametrize("row", [0, 2])
def test_a_query_shows_its_row_alone_in_every_format(make, row):
    """As an answer of that word would: what stands in tables is computed from its row alone."""
    options = (
        {} if make is cross else {"log_probabilities": [-0.5 * i for i in range(len(make().written))]}
    )
    answer = make(**options, query=row)
    position, token = answer.first + row, answer.written[row].text
    lines = list(csv.DictReader("\n".join(answer.csv()).splitlines()))
    assert {(int(line["position"]), line["token"]) for line in lines} == {(position, token)}
    shown = np.array([float(line.get("share") or line["weight"]) for line in lines])
    patches = [patch.position for picture in answer.pictures for patch in picture.patches]
    expected = shares(answer)[row] if not patches else answer.weights[row, patches]
    np.testing.assert_allclose(shown, expected, atol=1e-6)
    text = markdown_document(answer.document())
    places = [f"{answer.first + i - 1} → {answer.first + i} " for i in range(len(answer.written))]
    assert [i for i, each in enumerate(places) if each in text] == [row]
    if answer.by_segment:
        known = [i for i, each in enumerate(answer.segments) if each.n_token]
        cells = segment_columns(answer.alone())[2].texts()
        assert cells == [share_text(shares(answer)[row, i]) for i in known]
        assert all(each in text for each in cells)
        assert f"alone: {position}" in text
