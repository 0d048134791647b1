"""Parts of results: how they are had, and what is said of those that there are not."""

import copy
import pickle

import matplotlib
import numpy as np
import pytest

import attnscope
from attnscope.base.errors import AttnscopeError, OptionError
from tests.document.every_result import every_result, head, maps
from tests.model.heads.head_tables import head_table

matplotlib.use("Agg")


@pytest.mark.parametrize(
    ("result", "part", "known", "hint"),
    [
        ("a trace", "scors", "Q, K, V, scores, attention, out", "scores"),
        ("a comparison", "score", "scores, out", "scores"),
        ("an audit", "casual", "causal, cache, batch", "causal"),
        ("a head", "W_O", "W_Q, W_K", None),
        ("an example", "row", "rows, columns, query", "rows"),
        ("an experiment", (5, True), "(4, False), (4, True), (16, False), (16, True)", None),
        ("maps", (0, 7), "(0, 0), (0, 1), (0, 2)", None),
        ("maps", 3, "0.", None),
        ("metrics", "entropie", "entropy, ", "entropy"),
    ],
)
def test_a_part_that_there_is_not_is_a_key_error_that_names_those_that_there_are(
    result, part, known, hint
):
    with pytest.raises(KeyError) as caught:
        every_result()[result][part]
    assert isinstance(caught.value, AttnscopeError)
    assert str(caught.value).startswith("there is no ")
    assert f"it has {known}" in str(caught.value)
    assert hint is None or caught.value.hint == hint


def test_maps_are_a_collection_by_layer_and_head():
    result = maps(heads=3)
    assert len(result) == 3
    assert [each.head for each in result] == [0, 1, 2]
    assert result[0][2] is result[0, 2]
    assert list(result[0]) == [0, 1, 2]
    with pytest.raises(KeyError, match="there is no 9 in layer 0 of these maps: it has 0, 1, 2"):
        result[0][9]
    assert result[0, 1].tokens == [f" word{i}" for i in range(5)]
    assert result[0, 1].query_tokens is result.query_tokens


def test_a_metric_is_an_array_of_layers_and_heads_and_a_value_of_a_row():
    table = head_table({"self": (2, 3)})
    entropy = table["entropy"]
    assert entropy.shape == (2, 3)
    for row in table:
        assert entropy[row.layer, row.head] == row.entropy == row["entropy"] == row.values["entropy"]
    assert len(table) == 6
    table.rows[0].values["entropy"] = None
    assert np.isnan(table["entropy"][0, 0])
    with pytest.raises(AttributeError, match="a row has no 'haeds': it has entropy"):
        _ = table.rows[0].haeds
    with pytest.raises(KeyError, match="there is no 'x' in this row"):
        table.rows[0]["x"]
    assert copy.deepcopy(table.rows[1]) == pickle.loads(pickle.dumps(table.rows[1])) == table.rows[1]


def test_metrics_of_several_stacks_name_the_stack():
    table = head_table({"decoder": (2, 3), "cross": (2, 3)})
    assert table["decoder", "entropy"].shape == (2, 3)
    with pytest.raises(KeyError, match=r"it has \('decoder', 'entropy'\), \('cross', 'entropy'\)"):
        table["entropy"]


def test_maps_are_drawn_into_axes_of_a_figure_of_the_user():
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2)
    result = maps(n=4, heads=3)
    assert result.plot(left, head=1) is left
    np.testing.assert_array_equal(left.images[0].get_array(), result[0, 1].attention)
    assert [tick.get_text() for tick in left.get_yticklabels()] == [f"word{i}" for i in range(4)]
    assert not right.images
    assert len(figure.axes) == 2
    with pytest.raises(OptionError, match="these axes hold one map, and there are 3"):
        result.plot(right)
    with pytest.raises(KeyError):
        result.plot(right, head=7)
    with pytest.raises(
        OptionError, match=r"axes is 'maps.png', but takes axes of matplotlib\."
    ) as caught:
        result.plot("maps.png", head=1)
    assert caught.value.hint.startswith("save(…)")
    pyplot.close(figure)


def test_maps_side_by_side_share_their_colours_and_say_which_weights_these_are():
    from matplotlib import pyplot

    result = maps(n=4, heads=2)
    result[0, 0].attention[:] = 0.25  # a uniform head
    result[0, 1].attention[:] = np.eye(4)
    figure, both = pyplot.subplots(1, 2)
    for number, each in enumerate(both):
        result.plot(each, head=number)
        assert each.images[0].get_clim() == (0, 1)
        assert [text.get_text() for text in each.texts] == ["colours from 0 to 1"]
    pyplot.close(figure)
    result[0, 1].attention[:] = 0
    axes = result.plot(head=0)  # alone, beside its scale
    assert axes.images[0].get_clim() == (0, 0.25)
    assert axes.figure.axes[1].get_ylabel() == "weight"
    pyplot.close(axes.figure)


@pytest.mark.parametrize("heads", [1, 3])
def test_maps_are_drawn_in_a_figure_of_their_own(heads):
    from matplotlib import pyplot

    axes = maps(heads=heads).plot()
    assert len(axes.images) == heads
    assert axes.figure in map(pyplot.figure, pyplot.get_fignums())
    pyplot.close(axes.figure)


def test_a_trace_of_a_missing_name_and_a_head_by_its_name():
    assert head()["W_Q"].name == "W_Q"
    assert attnscope.dry_run("sdpa")["scores"].name == "scores"
