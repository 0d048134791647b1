"""Metrics of heads as the page's data, and in its text."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from math import inf, nan

import numpy as np
import pytest

from attnscope.document.page.page import page_html
from attnscope.model.heads.result import HeadRow, HeadTable
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Token

METRICS = {"entropy": "how spread it is, in nats", "previous": "weight to the token before"}


def row(layer, head, values=(1.0, 0.5), errors=(0.1, 0.05), stack="self"):
    return HeadRow(
        stack,
        layer,
        head,
        dict(zip(METRICS, values, strict=True)),
        dict(zip(METRICS, errors, strict=True)),
    )


def table(*rows, layers=None, model="a model", **more):
    return HeadTable(model, METRICS, 3, 99, layers or {"self": (2, 3)}, list(rows), **more)


def maps(*places, stack="self", model="a model"):
    each = [AttentionMap(layer, head, head, np.eye(2, dtype=np.float32)) for layer, head in places]
    tokens = [Token("a"), Token("b")]
    return AttentionMaps(model, stack, 2, 3, 3, tokens, tokens, each)


def html_of(*stacks, heads=None, metric=None, title="a title"):
    return page_html(list(stacks), layer=0, head=0, title=title, heads=heads, metric=metric)


def data_in(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.S)[1])


def shown(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html.split("<script")[0].split("</style>")[1]))


def test_a_head_has_its_numbers_in_the_order_of_the_metrics():
    data = data_in(html_of(heads=table(row(0, 1, (1.25, 0.5), (0.125, None)))))
    assert data["metrics"] == [{"name": name, "meaning": meaning} for name, meaning in METRICS.items()]
    [stack] = data["stacks"]
    assert stack["heads"] == [{"layer": 0, "head": 1, "values": [1.25, 0.5], "errors": [0.125, None]}]


def test_the_first_metric_to_show_is_in_the_data():
    assert data_in(html_of(heads=table(row(0, 0)), metric="previous"))["metric"] == "previous"
    assert data_in(html_of(heads=table(row(0, 0))))["metric"] is None


def test_numbers_have_as_many_digits_as_are_shown():
    [stack] = data_in(html_of(heads=table(row(0, 0, (1.23456789, 1e-12), (0.0123456, 0)))))["stacks"]
    assert stack["heads"][0]["values"] == [1.23457, 1e-12]
    assert stack["heads"][0]["errors"] == [0.0123, 0]


@pytest.mark.parametrize("number", [None, nan, inf])
def test_what_is_no_number_is_none(number):
    [stack] = data_in(html_of(heads=table(row(0, 0, (number, 0.5), (number, 0.1)))))["stacks"]
    assert stack["heads"][0]["values"] == [None, 0.5]
    assert stack["heads"][0]["errors"] == [None, 0.1]


def test_errors_are_left_out_where_there_are_none():
    [stack] = data_in(html_of(heads=table(row(0, 0, (0.2, 0.5), (None, None)))))["stacks"]
    assert "errors" not in stack["heads"][0]


def test_a_metric_that_was_not_measured_of_a_stack_is_none():
    only = HeadRow("self", 0, 0, {"previous": 0.5}, {"previous": 0.1})
    [stack] = data_in(html_of(heads=table(only)))["stacks"]
    assert stack["heads"][0]["values"] == [None, 0.5]


def test_a_head_has_a_map_or_metrics_or_both_and_keeps_its_place():
    one = maps((0, 1), (1, 0), (1, 2))
    [stack] = data_in(html_of(one, heads=table(row(0, 0), row(0, 1), row(1, 1))))["stacks"]
    assert [
        (each["layer"], each["head"], each.get("weights"), "values" in each) for each in stack["heads"]
    ] == [(0, 0, None, True), (0, 1, 0, True), (1, 0, 1, False), (1, 1, None, True), (1, 2, 2, False)]


def test_rows_go_to_the_stack_they_are_of_and_new_stacks_come_after_those_with_maps():
    layers = {"encoder": (2, 2), "decoder": (2, 2), "cross": (2, 2)}
    rows = [row(0, 0, stack="decoder"), row(0, 1, (0.25, 0.5), stack="cross")]
    data = data_in(html_of(maps((0, 0), stack="cross"), heads=table(*rows, layers=layers)))
    assert [stack["name"] for stack in data["stacks"]] == ["cross", "decoder"], "encoder has no rows"
    assert [each.get("values") for each in data["stacks"][0]["heads"]] == [None, [0.25, 0.5]]
    assert data["stacks"][1]["queries"] == []


def test_maps_without_metrics_are_the_same_page_as_before():
    html = html_of(maps((0, 0)))
    data = data_in(html)
    assert data["metrics"] == []
    assert not {"values", "errors"} & data["stacks"][0]["heads"][0].keys()
    body = html.split("</style>")[1].split("<script")[0]
    for part in ("<select", "measures", "ranking", 'class="measured"', "value-tip"):
        assert part not in body
    for part in ("showMetrics() {", "#all-values {"):
        assert part not in html
        assert part in html_of(maps((0, 0)), heads=table(row(0, 0)))


def test_what_was_measured_is_said():
    text = shown(html_of(heads=table(row(0, 0), notices=["A notice."])))
    for part in (
        "a model",
        "2 layers",
        "3 heads",
        "no maps",
        "means over 3 sequences, 99 tokens",
        "A notice.",
    ):
        assert part in text
    assert "not read completely" not in text
    assert "left out" not in text
    assert "± is the standard error" in text
    assert "Weights are stored" not in text
    assert "Weights are stored" in shown(html_of(maps((0, 0)), heads=table(row(0, 0))))


def test_a_run_that_ended_early_and_lines_that_were_no_text_are_said():
    text = shown(html_of(heads=table(row(0, 0), partial=True, skipped=2)))
    assert "the beginning of a corpus that was not read completely; 2 lines skipped" in text


def test_one_sequence_has_no_standard_error_to_explain():
    one = table(row(0, 0, errors=(None, None)))
    one.sequences = 1
    text = shown(html_of(heads=one))
    assert "means over 1 sequence, 99" in text
    assert "±" not in text


def test_a_page_of_metrics_does_not_say_where_the_model_lay():
    folder = "/home/me/secret/gpt"
    heads = table(row(0, 0), model=folder, notices=[f"{folder} was cut"])
    html = html_of(heads=heads, title=f"{folder} · heads")
    assert "secret" not in html
    assert "<title>gpt · heads</title>" in html
    assert "<li>gpt was cut</li>" in html
    assert "secret" not in html_of(maps((0, 0), model="other"), heads=heads, title=f"{folder} · heads")


@pytest.mark.sweep
def test_a_page_of_the_metrics_of_5120_heads_is_small():
    rows = [row(layer, head) for layer in range(80) for head in range(64)]
    assert len(html_of(heads=table(*rows, layers={"self": (80, 64)}))) < 512 * 1024


@pytest.mark.parametrize("stacks", [[], [maps((0, 0))]])
def test_the_policy_allows_one_script_and_one_style_with_metrics_too(stacks):
    html = html_of(*stacks, heads=table(row(0, 0)))
    for kind in ("script", "style"):
        [text] = re.findall(rf"<{kind}>(.*?)</{kind}>", html, re.S)
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in html
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "://", "url(", 'style="'):
        assert forbidden not in html


def test_no_metric_or_notice_becomes_markup():
    evil = "</script><img src=x onerror=alert(1)>"
    heads = HeadTable(
        "m",
        {evil: evil},
        3,
        99,
        {evil: (1, 1)},
        [HeadRow(evil, 0, 0, {evil: 1.0}, {evil: 0.1})],
        notices=[evil],
    )
    html = html_of(heads=heads)
    assert "<img" not in html
    assert data_in(html)["metrics"] == [{"name": evil, "meaning": evil}]
