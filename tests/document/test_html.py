"""What a notebook shows for a result, as HTML."""

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import attnscope
from attnscope.document.result import Finding
from attnscope.model.maps.drawing import LARGEST, page_and_note, smaller_maps
from attnscope.model.run.tokens import Token
from attnscope.observe.trace import Crash, Operand, Trace
from tests.document.every_result import every_result, head, maps
from tests.model.heads.head_tables import head_table

VOID = {"br", "hr", "input", "img", "meta", "path"}
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


class Tree(HTMLParser):
    """Reads a fragment: its elements with their attributes, its text; all that is opened must be closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    @property
    def tags(self):
        return {tag for tag, _ in self.elements}


@pytest.mark.few(20)
@pytest.mark.parametrize("name", every_result())
def test_every_result_has_a_view_that_is_whole_and_asks_for_nothing(name):
    tree = Tree(every_result()[name]._repr_html_())
    assert tree.text or "iframe" in tree.tags
    assert not tree.tags & {"script", "link", "img"}
    for tag, attributes in tree.elements:
        assert not {"src", "href", "id", "action"} & attributes.keys(), tag


@pytest.mark.parametrize(
    "name", [each for each in every_result() if "map" not in each and "answer" not in each]
)
def test_a_view_is_small(name):
    assert len(every_result()[name]._repr_html_()) < 60_000


def test_a_trace_is_a_table_whose_rows_open():
    tree = Tree(every_result()["a trace"]._repr_html_())
    assert [tag for tag, _ in tree.elements].count("details") == 6
    assert "scores Q @ K.mT * scale n_batch n_Q n_K 2 × 3 × 4 96 B" in tree.text
    assert (
        "expression Q @ K.mT * scale place line 86 size 2×3×4 float32, 96 B strides contiguous"
        in tree.text
    )
    assert "values min -" in tree.text
    assert "largest: " in tree.text


def test_a_trace_without_tensors_and_a_table_without_heads_are_shown():
    assert "no tensor was named" in Trace("nothing")._repr_html_()
    assert "1 layer × 2 heads" in replace(head_table({"self": (1, 2)}), rows=[])._repr_html_()


def test_a_finding_stands_below_the_row_of_its_line():
    trace = every_result()["a trace"]
    line = trace["scores"].line
    found = [Finding("here", line), Finding("elsewhere", 9999), Finding("anywhere")]
    text = Tree(replace(trace, findings=found)._repr_html_()).text
    assert f"inf line {line}: here ▾"[:-2] in text
    assert text.index("here") < text.index("softmax(scores") < text.index("elsewhere")
    assert "line 9999: elsewhere anywhere" in text


def test_a_crash_is_shown():
    crash = Crash("m.py", 7, "q @ k", [Operand("q", ("n_Q",), (3,))], "3 and 4", "RuntimeError: x")
    text = Tree(replace(every_result()["a trace"], crash=crash)._repr_html_()).text
    assert "✗ line 7: q @ k" in text
    assert "RuntimeError: x" in text


def test_the_source_stands_below_with_the_shape_of_every_line():
    text = Tree(attnscope.dry_run("sdpa", source=True)._repr_html_()).text
    assert "17 def sdpa ( 18 Q: torch.Tensor, n_batch n_Q d_K 3 × 30 × 128" in text
    assert text.index("in matrix products") < text.index("def sdpa")


def test_an_example_shows_every_matrix_once():
    text = Tree(every_result()["an example"]._repr_html_()).text
    assert text.count("k0 k1 k2 k3") == 2  # the scores and the weights
    assert 'the same numbers as above; worked_example(layout="columns") shows them in this form' in text
    assert "out, transposed, equals out by rows 0 1e-12 holds" in text


def test_a_diff_and_a_check_of_comments_are_shown():
    assert "+x = f(y) # [n_Q, d_K]" in Tree(every_result()["a diff"]._repr_html_()).text
    text = Tree(every_result()["a check of comments"]._repr_html_()).text
    assert text == "shape comments: 3 true, 1 not true line 7: the comment says x is [a], but"


@pytest.mark.sweep
def test_a_long_trace_shows_its_first_and_last_rows():
    trace = attnscope.dry_run("sdpa")
    trace.steps = [replace(trace.steps[0], name=f"t{i}", line=i) for i in range(3000)]
    trace.findings = [Finding("hidden", 1500)]
    html = trace._repr_html_()
    assert len(html) < 500_000
    assert "… 2600 more" in html
    assert {"t0", "t199", "t2800", "t2999"} <= {*Tree(html).text.split()}
    assert "t1500" not in html
    assert "line 1500: hidden" in html


def test_what_comes_from_data_is_escaped():
    trace = every_result()["a trace"]
    step = replace(trace.steps[0], name=HOSTILE, how=HOSTILE, dims=(HOSTILE,), shape=(3,))
    hostile = [
        replace(trace, title=HOSTILE, steps=[step], findings=[Finding(HOSTILE)], notices=[HOSTILE]),
        replace(head(), model=HOSTILE),
        replace(head_table(), model=HOSTILE, notices=[HOSTILE], metrics={"self": HOSTILE}),
        replace(every_result()["a program"], notes=[HOSTILE]),
        replace(every_result()["a diff"], name=HOSTILE, diff=f"+{HOSTILE}"),
        replace(maps(), model=HOSTILE, notices=[HOSTILE], key_tokens=[Token(HOSTILE)] * 5),
    ]
    for result in hostile:
        tree = Tree(result._repr_html_())
        assert not tree.tags & {"script", "img"}
        if "iframe" not in tree.tags:
            assert "<script>alert(1)</script>" in tree.text


def test_invisible_characters_are_written_out():
    trace = replace(every_result()["a trace"], title="a\u202eb\x1b[1m")
    assert "a\\u202eb\\x1b[1m" in trace._repr_html_()


def test_weights_have_histograms():
    tree = Tree(head()._repr_html_())
    assert [tag for tag, _ in tree.elements].count("svg") == 2
    constant = head()
    constant.weights[0].array = np.full((4, 12), np.nan, "float32")
    constant.weights[1].array = np.zeros((4, 12), "float32")
    assert [tag for tag, _ in Tree(constant._repr_html_()).elements].count("svg") == 1


def test_metrics_are_grids_and_a_ranking():
    tree = Tree(head_table()._repr_html_())
    assert [tag for tag, _ in tree.elements].count("figure") == 6
    titles = [attributes["title"] for tag, attributes in tree.elements if "title" in attributes]
    assert len(titles) == 6 * 72
    assert titles[0].startswith("L0 H0: ")
    ranked = Tree(head_table().ranked("self", top=2)._repr_html_())
    assert [tag for tag, _ in ranked.elements].count("figure") == 1
    assert [tag for tag, _ in ranked.elements].count("tr") == 3


@pytest.mark.sweep
def test_a_table_of_many_heads_stays_small():
    large = head_table({"self": (96, 128)})
    html = large._repr_html_()
    assert len(html) < 2_000_000
    assert "without a grid" in html
    assert "… 12,238 more heads" in large.ranked("self")._repr_html_()


# Attention maps.


def test_maps_are_the_page_in_a_frame_without_an_origin():
    [(_, frame)] = [each for each in Tree(maps()._repr_html_()).elements if each[0] == "iframe"]
    assert frame["sandbox"] == "allow-scripts"
    assert frame["srcdoc"] == page_and_note(maps())[0]
    assert frame["srcdoc"].startswith("<!doctype html>")


def test_72_heads_of_13_tokens_take_at_most_150_kilobytes():
    assert len(maps(13, heads=72)._repr_html_()) <= 150_000


@pytest.mark.sweep
def test_maps_that_are_too_large_are_pooled_with_a_note():
    large = maps(1000, heads=12)
    page, note = page_and_note(large)
    assert len(page) <= LARGEST
    assert note.startswith("The page of these maps has more than 5 MB. Here they are pooled to at most")
    assert note in Tree(large._repr_html_()).text


def test_pooled_maps_show_the_largest_weight_of_each_cell():
    whole = maps(10)
    small = smaller_maps(whole, 5)
    expected = whole.maps[0].attention.reshape(5, 2, 5, 2).max(axis=(1, 3))
    np.testing.assert_array_equal(small.maps[0].attention, expected)
    assert small.pooling.queries == [range(i, i + 2) for i in range(0, 10, 2)]
    again = smaller_maps(small, 3)
    assert again.pooling.keys == [range(4), range(4, 8), range(8, 10)]
    assert again.maps[0].attention.shape == (3, 3)
    assert whole.pooling is None


def test_models_side_by_side_fit_into_a_notebook(tmp_path):
    """1,000 px are 120 characters: what is kept and what is computed are two tables, and names can wrap."""
    file = tmp_path / "config.json"
    file.write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,'
        ' "intermediate_size": 32, "vocab_size": 100, "max_position_embeddings": 128, "dtype": "float16"}'
    )
    cards = attnscope.cards([file, file], memory="1G", flops="1T", bandwidth="1T")
    html = cards._repr_html_()
    tables = html.split("<table>")[1:]
    heads = [table.split("</thead>")[0].count("<th ") for table in tables]
    assert heads == [9, 6]
    for table in tables:
        assert ">model</th>" in table
        assert '<td class="text">' in table
    assert ["time, token" in table for table in tables] == [False, True]
    assert ["longest context" in table for table in tables] == [True, False]
