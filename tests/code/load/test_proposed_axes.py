"""Names for axes that the user does not name."""

import pytest

from attnscope.code.load.proposed_axes import InputShape, guessed_axes, proposed_axes


def proposed(shapes, of_code=(), sizes=(), **more):
    inputs = {name: InputShape(shape, "float32") for name, shape in shapes.items()}
    options = {"has_weights": True, **more}
    return proposed_axes(inputs, {}, dict(of_code), dict(sizes), **options)


def test_axes_that_nobody_names_have_the_names_of_the_textbook():
    assert proposed({"q": (2, 5, 48), "k": (2, 7, 48), "x": (2, 9, 3, 4)}) == {
        "q": ("n_batch", "n_Q", "d_feat"),
        "k": ("n_batch", "n_K", "d_feat"),
        "x": ("n_batch", "n_head", "n", "d_head"),
    }


def test_a_name_of_the_code_wins_and_holds_for_other_inputs():
    of_code = {"query": ["L", "N", "E"]}
    assert proposed({"query": (2, 5, 48), "key": (2, 7, 48)}, of_code) == {
        "query": ("L", "N", "E"),
        "key": ("L", "n_K", "E"),
    }


@pytest.mark.parametrize("key", [(7, 2, 48), (5, 2, 48)])
def test_the_batch_is_the_axis_in_which_queries_and_keys_agree(key):
    dims = proposed({"query": (5, 2, 48), "key": key})
    assert dims["query"] == (
        ("n_Q", "n_batch", "d_feat") if key[0] == 7 else ("n_batch", "n_Q", "d_feat")
    )


def test_a_width_keeps_the_name_that_the_module_has_for_it():
    assert proposed({"x": (2, 5, 48)}, {"x": ["B", "T", "C"]}, {"n_embd": 48}) == {
        "x": ("B", "T", "n_embd")
    }


def test_sizes_that_can_change_name_no_axis():
    dims = proposed({"x": (2, 5, 48)}, sizes={"longest": 48}, are_fixed=False)
    assert dims == {"x": ("n_batch", "n", "d_feat")}


def test_a_mask_of_two_axes_has_axes_of_the_inputs_and_no_number_of_layers():
    dims = proposed({"x": (2, 5, 48), "mask": (2, 5)}, sizes={"num_layers": 2})
    assert dims["mask"] == ("n_batch", "n")
    biased = proposed({"x": (2, 5, 48), "bias": (2, 5, 5)}, sizes={"n_groups": 2})
    assert biased["bias"] == (2, "n", "n")


def test_a_name_of_the_code_with_two_sizes_names_the_first_of_them():
    dims = proposed({"q": (2, 5, 48), "k": (2, 7, 48)}, {"q": ["B", "T", "C"], "k": ["B", "T", "C"]})
    assert dims == {"q": ("B", "T", "C"), "k": ("B", "n_K", "C")}


def test_what_neither_the_user_nor_the_code_names_is_guessed():
    dims = {"q": ("B", "n_Q", 48), "k": ("B", "n_K", "n_embd")}
    assert guessed_axes(dims, [{"B"}, {"n_embd": 48}]) == ["n_Q", "n_K"]


def test_a_module_says_whether_its_batch_comes_first():
    shapes = {"query": (5, 2, 48), "key": (5, 2, 48)}
    assert proposed(shapes, batch_first=False)["query"] == ("n_Q", "n_batch", "d_feat")
    assert proposed(shapes, batch_first=True)["query"] == ("n_batch", "n_Q", "d_feat")
