"""Differences between attention maps, in every view."""

import io
import json

import numpy as np
from rich.console import Console

from attnscope.model.heads.ranking import head_columns
from attnscope.model.maps.changed_maps import SIDES, by_side, sides
from tests.document.every_result import map_differences


def printed(table, width=100) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return file.getvalue().splitlines()


def test_what_is_more_and_less_in_b_are_the_signs_of_the_difference():
    table = map_differences()
    a, b, more, less = sides(table)
    for i, (map_a, map_b) in enumerate(zip(table.of_a.maps, table.of_b.maps, strict=True)):
        difference = map_b.attention - map_a.attention
        assert np.array_equal(a.maps[i].attention, map_a.attention)
        assert np.array_equal(b.maps[i].attention, map_b.attention)
        assert np.array_equal(more.maps[i].attention - less.maps[i].attention, difference)
        assert min(more.maps[i].attention.min(), less.maps[i].attention.min()) == 0
    assert [each.stack for each in (a, b, more, less)] == list(SIDES)


def test_the_heading_says_which_tokens_differ():
    assert printed(map_differences())[:3] == [
        "a model: text A → text B",
        "1 layer × 3 heads · 5 tokens · 3 of 3 heads differ",
        "1 other token: 2 word2 → other",
    ]


def test_small_maps_are_side_by_side_and_the_strongest_changes_below():
    lines = printed(map_differences())
    heading = next(line for line in lines if line.startswith("head A"))
    assert heading.split("  ")[0] == "head A"
    assert all(side in heading for side in SIDES)
    place = lines.index("the weights that changed most")
    assert lines[place + 2].split() == ["layer", "head", "query", "key", "A", "B", "B", "−", "A"]
    assert len(lines) == place + 7  # one weight of each of three heads
    a, b = (maps.maps[0].attention[1, 4] for maps in (map_differences().of_a, map_differences().of_b))
    row = next(line.split() for line in lines[place + 4 :] if line.split()[1] == "0")
    assert row == ["0", "0", "1", "word1", "4", "word4", f"{a:.3f}", f"{b:.3f}", f"{b - a:+.3f}"]


def test_a_single_heads_maps_are_below_each_other():
    lines = printed(map_differences(heads=1))
    assert [line for line in lines if line in SIDES] == list(SIDES)
    assert sum("word2 → other" in line for line in lines) >= 2


def test_equal_maps_are_said_to_be_equal_and_not_drawn():
    assert printed(map_differences(equal=True)) == [
        "a model: text A → text B",
        "1 layer × 3 heads · 5 tokens · 3 maps equal bit for bit",
        "1 other token: 2 word2 → other",
    ]


def test_the_record_has_tokens_and_the_strongest_changes():
    table = map_differences().ranked("change", top=1)
    record = table.to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["schema"] == "attnscope.map_differences/1"
    assert [keys[2] for keys in record["keys"]] == [" word2", " other"]
    [head] = record["heads"]
    [strongest] = head.pop("strongest")
    best = max(table.rows, key=lambda row: row.values["change"])
    assert head == {"stack": "self", "layer": 0, "head": best.head, **best.values}
    change = table.strongest[0, best.head][0]
    assert strongest == {"query": 1, "key": 4, "a": change.a, "b": change.b}


def test_csv_has_the_weight_that_changed_most():
    columns = {
        each.key: each.raw
        for each in head_columns(map_differences(), map_differences().rows)
        if each.raw
    }
    assert list(columns) == [
        "layer",
        "head",
        "change",
        "largest",
        "query",
        "key",
        "weight_a",
        "weight_b",
    ]
    assert (columns["query"], columns["key"]) == ([1, 1, 1], [4, 4, 4])


def test_a_page_has_both_maps_and_their_differences_with_the_same_metrics(tmp_path):
    table = by_side(map_differences())
    assert [maps.stack for maps in table.maps] == list(SIDES)
    assert [row.stack for row in table.rows] == [side for side in SIDES for _ in range(3)]
    map_differences().save(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert all(f"<span>{side}</span>" in page for side in SIDES)
