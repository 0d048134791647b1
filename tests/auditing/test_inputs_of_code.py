"""Audits of code with several inputs: masks hide nothing by chance, and only positions change."""

from __future__ import annotations

import pytest
import torch

import attnscope
from attnscope.base.errors import AttnscopeError, OptionError, SourceError
from tests.auditing import attention_with_inputs as code

X = {"x": "B:2,T:9,d:8"}
MASK = {"mask": "B,T@bool"}


def audit(target, inputs, **options):
    return attnscope.audit(target, inputs=X | inputs, **options)


def status(target, inputs, name="causal", **options):
    return audit(target, inputs, **(options or {"causal": True}))[name].status


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("right", "wrong", "inputs"),
    [
        (code.hidden_keys, code.hidden_keys_leaky, MASK),
        (code.by_position, code.by_position_leaky, {"position_ids": "B,T<9"}),
        (code.of_pairs, code.of_pairs_leaky, {"mask": "T,T@bool"}),
        (code.cross, code.cross_leaky, {"memory": "B,T,d"}),
        (code.decoder, code.decoder_leaky, {"memory": "B,T,d"}),
        (code.decoder, code.decoder_leaky, {"memory": "B,S:7,d"}),
        (code.in_place, code.in_place_leaky, {}),
    ],
)  # fmt: skip
def test_what_is_drawn_beside_the_text_neither_breaks_nor_hides_a_leak(right, wrong, inputs):
    assert status(right, inputs) == "holds"
    found = audit(wrong, inputs, causal=True)["causal"]
    assert found.status == "broken"
    n_pairs = 36 if wrong is code.of_pairs_leaky else 8
    assert len(found.evidence.influence.wrong) == n_pairs


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "mask"),
    [(code.of_pairs_that_hide, "hidden=T,T@bool"), (code.of_pairs_added, "attn_bias=T,T")],
)
def test_a_drawn_mask_of_pairs_shows_what_is_promised(target, mask):
    inputs = dict([mask.split("=")])
    assert status(target, inputs, causal=True) == "holds"
    assert status(target, inputs, "bidirectional", bidirectional=True) == "holds"
    result = audit(target, inputs, causal=True, window=3)
    assert result["window"].status == result["coverage"].status == "holds"


def test_a_mask_that_is_given_stays_as_it_is():
    mask = torch.ones(9, 9).tril(1).bool()
    assert status(code.of_pairs, {"mask": mask}) == "broken"
    assert status(code.of_pairs, {"mask": mask.tril()}) == "holds"


def test_a_query_that_sees_no_key_is_no_evidence():
    found = audit(code.strictly_before, {}, causal=True)["causal"]
    assert found.status == "undecided"
    assert found.found == "query 0 sees no key in this input"


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["pad", "pad_mask", "src_mask", "tgt_mask", "valid", "shown"])
@pytest.mark.parametrize("means_hidden", [False, True])
def test_masks_are_found_by_use_whatever_they_are_called(name, means_hidden):
    scope: dict = {"attend": code.attend}
    sign = "~" if means_hidden else ""
    exec(f"def target(x, {name}):\n    return attend(x, ({sign}{name})[:, None], -1e9)\n", scope)
    target = scope["target"]
    target.__module__ = code.__name__
    found = audit(target, {name: "B,T@bool"}, bidirectional=True, padding=True)["padding"]
    assert found.status == "holds"
    assert f"left and right: changing positions that {name} hides" in found.found
    assert f"(True is {'padding' if means_hidden else 'real'})" in found.found


@pytest.mark.sweep
def test_padding_is_on_the_left_and_on_the_right():
    both = {"bidirectional": True, "padding": True}
    assert status(code.Padded, {"key_padding_mask": "B,T@bool"}, "padding", **both) == "holds"
    found = audit(code.on_the_right_alone, MASK, **both)["padding"]
    assert found.status == "broken"
    assert found.found.startswith("padding on the left, which mask hides (True is real): changing")


@pytest.mark.sweep
def test_a_causal_module_that_ignores_its_mask_is_found_by_padding_on_the_left():
    assert status(code.hidden_keys, MASK, "padding", causal=True, padding=True) == "holds"
    found = audit(code.mask_ignored, MASK, causal=True, padding=True)["padding"]
    assert found.status == "broken"
    start = "padding on the left, whatever the values of mask mean: changing position 0 moves position"
    assert found.found.startswith(start)
    assert found.evidence.line is None, "its causal mask is right"
    wrong = found.evidence.influence.wrong
    assert {key for _, key in wrong} == {0, 1, 2}
    assert {query for query, _ in wrong} == set(range(3, 9))


def test_lengths_pad_on_the_right():
    both = {"bidirectional": True, "padding": True}
    lengths = {"lengths": "B<9"}
    found = audit(code.by_length, lengths, **both)["padding"]
    assert found.status == "holds"
    assert found.found.startswith("right: ")
    assert status(code.by_length_one_more, lengths, "padding", **both) == "broken"


@pytest.mark.sweep
def test_each_of_two_masks_hides_the_positions_of_its_own_input():
    inputs = {"src": "B:2,S:7,d:8", "tgt": "B,T:9,d", "src_pad": "B,S@bool", "tgt_pad": "B,T@bool"}
    result = attnscope.audit(code.TwoMasks, inputs=inputs, causal=True, padding=True)
    assert result["causal"].status == result["padding"].status == "holds"
    assert result["padding"].found.count("True is padding") == 2


def test_a_boolean_input_that_hides_nothing_is_no_mask_unless_that_is_said():
    inputs = {"is_bold": "B,T@bool"}
    result = audit(code.flags, inputs, causal=True, padding=True)
    assert result["causal"].status == "holds"
    assert result["padding"].status == "undecided"
    assert "mask_input=NAME" in result["padding"].source
    said = audit(code.flags, inputs, causal=True, padding=True, mask_input="is_bold")
    assert said["padding"].status == "broken"
    with pytest.raises(OptionError, match="other is not a tensor among the inputs of flags"):
        audit(code.flags, inputs, causal=True, mask_input=["other"])


@pytest.mark.sweep
def test_ones_and_zeros_that_are_added_do_not_pass_for_infinity():
    both = {"bidirectional": True, "padding": True}
    found = audit(code.mask_added, {"mask": torch.ones(2, 9)}, **both)["padding"]
    assert found.status == "undecided"
    assert found.found == (
        'mask is 1 everywhere, and of 0, 1 and −∞, only −∞ hides: mask_input={"mask": 0} or'
        ' mask_input={"mask": "-inf"} says which should'
    )
    added = torch.zeros(2, 9).index_fill(1, torch.tensor([8]), -3e38)
    for target, right, meaning in (
        (code.mask_added, added, "−∞ hides"),
        (code.mask_converted, torch.ones(2, 9), "1 is real"),
        (code.mask_times_weights, torch.ones(2, 9), "1 is real"),
    ):
        found = audit(target, {"mask": right}, **both)["padding"]
        assert found.status == "holds"
        assert f"({meaning})" in found.found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("said", "added", "converted"),
    [
        ("mask=0", "broken", "holds"),
        ({"mask": False}, "broken", "holds"),
        ("mask=-inf", "holds", "holds"),
        ({"mask": "1"}, "broken", "broken"),
    ],
)
def test_a_user_can_say_which_value_of_a_mask_hides(said, added, converted):
    options = {"bidirectional": True, "padding": True, "mask_input": said}
    assert status(code.mask_added, {"mask": "B,T"}, "padding", **options) == added
    assert status(code.mask_converted, {"mask": "B,T"}, "padding", **options) == converted


def test_a_value_that_hides_nothing_is_refused():
    with pytest.raises(OptionError, match="'2' hides nothing: the value of mask that hides is 0, 1, or"):
        audit(code.mask_added, {"mask": "B,T"}, padding=True, mask_input="mask=2")
    with pytest.raises(OptionError, match="mask has no numbers to add to scores"):
        audit(code.hidden_keys, MASK, padding=True, mask_input={"mask": float("-inf")})


@pytest.mark.sweep
def test_positions_names_an_input_or_an_axis():
    memory = {"memory": "B,S:9,d"}
    for name in ("x", "T"):
        assert status(code.decoder, memory, causal=True, positions=name) == "holds"
    for name in ("memory", "S"):
        assert status(code.decoder, memory, causal=True, positions=name) == "broken"
    with pytest.raises(OptionError, match="no input of decoder that can be changed is called y"):
        audit(code.decoder, memory, causal=True, positions="y")


def test_inputs_of_other_lengths_stay_fixed():
    result = audit(code.with_indices, {"block_indices": "M:5<2"}, causal=True)
    assert result["causal"].status == "holds"
    assert result.notices == ["positions are those of x; not changed: block_indices"]


@pytest.mark.parametrize("n_batch", [2, 9])
def test_an_output_without_positions_is_refused(n_batch):
    with pytest.raises(SourceError, match="x has 9 positions, and the output one position"):
        attnscope.audit(code.last, inputs={"x": f"{n_batch},9,8"}, causal=True)
    with pytest.raises(SourceError, match="x has 8 positions, and the output no axis that changes"):
        attnscope.audit(code.pooled, inputs={"x": f"{n_batch},8,8"}, causal=True)


@pytest.mark.parametrize(
    ("target", "expression"),
    [(code.noisy, r"attend\(x, later\(x\)\) \* random"), (code.Remembers, r"torch\.cat")],
)
def test_code_with_another_result_in_each_run_is_refused(target, expression):
    with pytest.raises(
        SourceError, match=rf"two runs on the same input differ, first in line \d+: {expression}"
    ):
        audit(target, {}, causal=True)


def test_code_that_ends_the_process_is_refused():
    with pytest.raises(AttnscopeError, match="ends_the_process ends the process: SystemExit: 0"):
        audit(code.ends_the_process, {}, causal=True)


def test_options_without_effect_on_code_are_said():
    result = audit(code.in_place, {}, causal=True, cache=True, packed=True, kernels=True, thorough=True)
    assert [each.name for each in result.undecided] == ["packed", "cache", "kernels"]
    assert result.notices == ["thorough changes nothing: of code, every position is changed anyway"]
    with pytest.raises(OptionError, match="device is for models"):
        audit(code.in_place, {}, causal=True, device="cuda")
    with pytest.raises(OptionError, match="prefix is for first positions") as failure:
        audit(code.in_place, {}, batch=True, prefix=2)
    assert failure.value.hint == "causal=True, prefix=N"


def test_a_window_alone_says_nothing_of_later_keys():
    def window(x):
        return code.attend(x, code.later(x).triu(-2))

    result = audit(window, {}, window=3)
    assert (result["window"].status, result["coverage"].status) == ("holds", "not applicable")
    assert status(window, {}, "coverage", window=3, bidirectional=True) == "broken"
    assert status(window, {}, "window", window=2) == "broken"


def test_the_output_of_several_tensors_is_the_last_that_depends_on_v():
    assert status(code.weights_first, {}) == status(code.scores_first, {}) == "holds"
    found = audit(code.weights_first_leaky, {}, causal=True)["causal"]
    assert found.status == "broken"
    assert found.evidence.line.expression == "x.mean(1, keepdim=True)"


def test_weights_that_begin_as_zeros_hide_no_leak():
    result = audit(code.ZeroGate, {}, causal=True)
    assert result["causal"].status == result["coverage"].status == "holds"
    assert audit(code.ZeroGate, {}, init={"shift": 1}, causal=True)["causal"].status == "broken"
    module = code.ZeroGate(shift=1)
    live = audit(module, {}, causal=True)
    assert live["causal"].status == "broken"
    assert live.notices == ["weights that are constant are drawn: gate, out.weight"]
    assert not module.gate.any()


def test_code_that_needs_float32_is_audited_in_it():
    result = audit(code.Table, {}, causal=True)
    assert result.dtype == "float32"
    assert result["causal"].status == result["coverage"].status == result["batch"].status == "holds"
    assert "it runs in float32, because in float64, running Table raises" in result.notices[0]
    found = audit(code.Table, {}, init={"shift": 1}, causal=True)["causal"]
    assert found.status == "broken"
    assert 0 < found.evidence.rounding < 1e-5 < found.evidence.amount
    assert found.evidence.line.expression.endswith(".tril(shift)")


def test_what_rounding_may_explain_is_undecided():
    found = audit(code.Table, {}, init={"faint": 1e-7}, causal=True)["causal"]
    assert found.status == "undecided"
    assert found.found.endswith("which may be rounding in float32")


def test_dtype_is_that_of_code_too():
    for dtype in ("float32", "bfloat16", "float64"):
        result = audit(code.ZeroGate, {}, causal=True, dtype=dtype)
        assert (result.dtype, result["causal"].status) == (dtype, "holds")
    with pytest.raises(SourceError, match="running Table raises AssertionError: another dtype"):
        audit(code.Table, {}, causal=True, dtype="float64")


def test_an_axis_without_a_name_is_not_taken_for_positions_if_another_one_mixes():
    for x in ("9,2,8", torch.randn(9, 2, 8)):
        with pytest.raises(OptionError, match="which axis of x are the positions") as failure:
            attnscope.audit(code.sequence_first, inputs={"x": x}, causal=True)
        assert failure.value.hint == 'inputs={"x": "T:9,2,8"}'
    result = attnscope.audit(code.sequence_first, inputs={"x": "T:9,2,8"}, causal=True)
    assert result["causal"].status == "broken"
    assert attnscope.audit(code.in_place, inputs={"x": "2,9,8"}, causal=True)["causal"].status == "holds"


def test_drawn_inputs_have_their_positions_where_some_move_others():
    leaky = attnscope.audit(code.SequenceFirst, init={"d": 8, "n_hidden": 3}, causal=True)
    assert leaky["causal"].status == "broken"
    assert len(leaky["causal"].evidence.influence.wrong) == sum(range(1, 10))
    right = attnscope.audit(code.SequenceFirst, init={"d": 8}, causal=True)
    assert right["causal"].status == right["coverage"].status == right["batch"].status == "holds"
    assert right.n_tokens == leaky.n_tokens == 13
    start = "positions are along axis 0, where some move others"
    assert right.notices[-1].startswith(start)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["MultiheadAttention", "TransformerEncoderLayer"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_modules_of_pytorch_have_the_batch_first_or_second(name, batch_first):
    module = getattr(torch.nn, name)(8, 2, batch_first=batch_first)
    result = attnscope.audit(module, bidirectional=True)
    assert result["bidirectional"].status == result["batch"].status == "holds"


def test_given_tensors_of_a_module_with_the_batch_second_are_asked_for_their_axis():
    x = torch.randn(7, 3, 8)
    with pytest.raises(OptionError, match="which axis of query are the positions") as failure:
        attnscope.audit(torch.nn.MultiheadAttention(8, 2), x, x, x, bidirectional=True)
    assert failure.value.hint.startswith("batch_first=True where MultiheadAttention is built, or ")
    assert '"query": "T:7,3,8"' in failure.value.hint
    right = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = x.transpose(0, 1)
    assert attnscope.audit(right, x, x, x, bidirectional=True)["bidirectional"].status == "holds"


def test_the_batch_is_the_axis_called_so():
    x = {"x": "T:9,B:3,d:8"}
    right = attnscope.audit(code.SequenceFirst, init={"d": 8}, inputs=x, causal=True)
    assert right["batch"].status == "holds"
    mixed = attnscope.audit(code.rows_mixed_sequence_first, inputs=x, causal=True)
    assert (mixed["causal"].status, mixed["batch"].status) == ("holds", "broken")
    assert mixed["batch"].source == "axis 1 is the batch"
    unnamed = attnscope.audit(code.rows_mixed_sequence_first, inputs={"x": "T:9,3,d:8"}, causal=True)
    assert unnamed["batch"].status == "not applicable"
    assert unnamed["batch"].source == "no axis before that of the positions, and none is called B"


def test_missing_influence_that_no_option_asks_for_is_said_and_not_judged():
    found = audit(code.window_of_three, {}, causal=True)["coverage"]
    assert found.status == "not applicable"
    n_missing = sum(range(1, 7))
    assert found.source == (
        f"only coverage asks for it: changing position 0 does not move position 3; {n_missing} such pairs"
    )
    asked = audit(code.window_of_three, {}, causal=True, coverage=True)["coverage"]
    assert (asked.status, asked.source) == ("broken", "causal=True, coverage")
    assert len(asked.evidence.influence.missing) == n_missing
    full = audit(code.in_place, {}, causal=True)["coverage"]
    assert (full.status, full.source) == ("holds", "causal=True")


def test_a_leak_shows_nothing_missing():
    def two_neighbours(x):
        return code.attend(x, code.later(x).triu(-2) | torch.ones(9, 9).triu(1).tril(1).bool())

    found = audit(two_neighbours, {}, causal=True)["causal"]
    assert found.status == "broken"
    assert len(found.evidence.influence.wrong) == 8
    assert not found.evidence.influence.missing


def test_a_mask_that_is_not_given_is_named_with_what_gives_it():
    options = {"init": {"width": 8}, "bidirectional": True, "padding": True}
    found = attnscope.audit(code.OptionalMask, **options)["padding"]
    assert found.status == "undecided"
    assert 'inputs={"x": "B:2,T:13,8", "key_padding_mask": "B,T@bool"}' in found.source
    inputs = {"x": "B:2,T:13,8", "key_padding_mask": "B,T@bool"}
    assert attnscope.audit(code.OptionalMask, inputs=inputs, **options)["padding"].status == "holds"


def test_an_input_that_is_called_a_mask_and_is_the_only_one_is_no_mask():
    ids = {"ids": torch.arange(2, 20).reshape(2, 9)}
    init = {"d": 8}
    with pytest.raises(
        OptionError, match="no input of Words but ids has an axis of positions"
    ) as failure:
        attnscope.audit(code.Words, init=init, inputs=ids, causal=True, mask_input="ids")
    assert failure.value.hint.startswith("without mask_input")
    assert attnscope.audit(code.Words, init=init, inputs=ids, causal=True)["causal"].status == "holds"


def test_one_position_proves_nothing():
    with pytest.raises(OptionError, match="has one position, and an audit needs two or more"):
        attnscope.audit(code.in_place, inputs={"x": "B:2,T:1,d:8"}, causal=True)


def test_integers_beside_numbers_stay_as_they_are():
    result = audit(code.by_depth, {"depth": "B,T<4"}, causal=True)
    assert result["causal"].status == "holds"
    assert result.notices == ["positions are those of x; not changed: depth"]
    assert attnscope.audit(code.by_depth, inputs=X | {"depth": "B,T<4"}, bidirectional=True).broken


@pytest.mark.few(1)
@pytest.mark.parametrize("fill", [-1e9, float("-inf")])
def test_padding_that_sees_no_key_does_not_matter_unless_it_spreads_nan(fill):
    both = {"causal": True, "padding": True}
    found = audit(code.TwoLayers, MASK, init={"fill": fill}, **both)["padding"]
    if fill == -1e9:
        assert found.status == "holds"
    else:
        assert found.status == "undecided"
        assert "queries 0, 1, 2 see no key, first in attention_with_inputs.py" in found.found
    found = audit(code.TwoLayers, MASK, init={"fill": -1e9, "masked": 1}, **both)["padding"]
    assert found.status == "broken"
    assert not found.evidence.influence.missing
