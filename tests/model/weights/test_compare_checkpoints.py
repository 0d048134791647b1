"""Two checkpoints, head by head: planted changes are found, where they are and as large as torch says."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from math import inf

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnscope import compare_checkpoints
from attnscope.base.errors import ModelError, OptionError
from attnscope.model.files.tensors import Safetensors
from attnscope.model.weights.head_weights import read_head
from tests.model.run.families import FAMILIES as FAMILIES_OF_MODELS
from tests.model.run.families import build
from tests.model.run.tiny import save_tiny
from tests.sweeps import swept

LAYER = 1


def slices_of(family: str, model: torch.nn.Module, head: int) -> dict[str, torch.Tensor]:
    """Views of one head's weights, to be changed in place: W_Q W_K W_V `d_head d_feat`, W_O `d_feat d_head`,
    and of its biases, as columns."""
    if family == "bert":
        own = model.encoder.layer[LAYER].attention
        modules = [own.self.query, own.self.key, own.self.value]
        parts, output = [each.weight.view(3, 8, 24)[head] for each in modules], own.output.dense.weight
        biases = [each.bias.view(3, 8)[head] for each in modules]
    elif family == "llama":
        own = model.layers[LAYER].self_attn
        parts = [own.q_proj.weight.view(6, 8, 36)[head]]
        group = 6 // (len(own.k_proj.weight) // 8)
        parts += [each.weight.view(-1, 8, 36)[head // group] for each in (own.k_proj, own.v_proj)]
        output, biases = own.o_proj.weight, []
    elif family == "gpt2":
        own = model.h[LAYER].attn
        parts = [own.c_attn.weight.view(24, 3, 3, 8)[:, i, head].T for i in range(3)]
        output = own.c_proj.weight.T
        biases = [*own.c_attn.bias.view(3, 3, 8)[:, head]]
    else:  # gpt_neox
        own = model.layers[LAYER].attention
        parts = list(own.query_key_value.weight.view(3, 3, 8, 24)[head])
        output = own.dense.weight
        biases = [*own.query_key_value.bias.view(3, 3, 8)[head]]
    names = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
    columns = [each[:, None] for each in biases]
    slices = [*parts, output[:, 8 * head : 8 * head + 8], *columns]
    return dict(zip(names, slices, strict=False))


ROTATED = {"llama": [(0, 4), (1, 5), (2, 6), (3, 7)], "gpt_neox": [(0, 1)]}
"""The features of a head that positions rotate together."""


def circuits_of(slices: dict[str, torch.Tensor], family: str = "bert") -> dict[str, torch.Tensor]:
    """QK and OV; of rotated features, QK at angles whose mean square is that of all angles."""
    pairs = ROTATED.get(family, [])
    rest = [i for i in range(8) if not any(i in pair for pair in pairs)]
    W_Q, W_K = slices["W_Q"].double(), slices["W_K"].double()
    products = [W_Q[rest].T @ W_K[rest]]
    for R in (torch.eye(2).double(), torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()):
        products += [W_Q[[*pair]].T @ R @ W_K[[*pair]] * 0.5**0.5 for pair in pairs]
    return {"QK": torch.cat(products), "OV": slices["W_O"] @ slices["W_V"]}


FAMILIES = pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "gpt_neox"])
HEAD = 2


@pytest.fixture
def changed(request, tmp_path):
    """Return a function that changes a family's model in place, and compares it with what it was, as files."""

    def compare(family, change, *, dtype=torch.float64, **options):
        model = build(family).to(dtype)
        after = copy.deepcopy(model)
        with torch.no_grad():
            change(slices_of(family, after, HEAD))
        for name, each in (("a", model), ("b", after)):
            each.save_pretrained(tmp_path / name)
        table = compare_checkpoints(tmp_path / "a", tmp_path / "b", **options)
        return table, slices_of(family, model, HEAD), slices_of(family, after, HEAD)

    return compare


def outer(rows: int, columns: int, dtype=torch.float64) -> torch.Tensor:
    torch.manual_seed(5)
    return (torch.randn(rows, 1, dtype=torch.float64) @ torch.randn(1, columns, dtype=torch.float64)).to(
        dtype
    )


def rotation(pairs=()) -> torch.Tensor:
    """A rotation of the eight features of a head, which keeps pairs in their planes."""
    torch.manual_seed(6)
    rest = [i for i in range(8) if not any(i in pair for pair in pairs)]
    R = torch.zeros(8, 8, dtype=torch.float64)
    for features in filter(None, [rest, *pairs]):
        R[torch.tensor(features)[:, None], torch.tensor(features)] = orthogonal(len(features))
    return R


def orthogonal(n: int) -> torch.Tensor:
    Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0]
    Q[0] *= torch.linalg.det(Q).sign()  # without a reflection
    return Q


def rotate(own, R, *names):
    for name in names:
        if name in own:
            own[name].copy_(R @ own[name].double())


@FAMILIES
@torch.no_grad()
def test_a_change_of_rank_one_in_one_head_is_found_with_its_size(changed, family):
    table, before, after = changed(family, lambda own: own["W_Q"].add_(outer(*own["W_Q"].shape)))
    assert [(row.layer, row.head) for row in table.changed] == [(LAYER, HEAD)]
    values = table[LAYER, HEAD].values
    norm = torch.linalg.matrix_norm
    old, new = before | circuits_of(before, family), after | circuits_of(after, family)
    for name in ("W_Q", "QK"):
        assert values[name] == pytest.approx(
            float(norm(new[name] - old[name]) / norm(old[name])), rel=1e-9
        )
        assert values[f"rank_{name}"] == 1
    others = {
        name: value for name, value in values.items() if name not in ("W_Q", "QK", "rank_W_Q", "rank_QK")
    }
    assert set(others.values()) == {0}
    assert not table.notices


@pytest.mark.few(4)
@FAMILIES
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_rotation_of_the_heads_basis_leaves_qk_and_ov_unchanged(changed, family, dtype):
    R = rotation()

    def change(own):
        rotate(own, rotation(ROTATED.get(family, ())), "W_Q", "W_K", "b_Q", "b_K")
        rotate(own, R, "W_V", "b_V")
        own["W_O"].copy_(own["W_O"].double() @ R.T)

    table, *_ = changed(family, change, dtype=dtype)
    values = table[LAYER, HEAD].values
    assert values["W_Q"] > 0.5
    assert values["W_O"] > 0.5
    assert {name: values[name] for name in ("QK", "OV", "rank_QK", "rank_OV")} == dict.fromkeys(
        ("QK", "OV", "rank_QK", "rank_OV"), 0
    )
    assert table.notices[0] == (
        "W_Q and W_K change, but QK does not up to rounding, as if the head's basis was rotated: L1 H2"
    )


@FAMILIES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_small_change_beside_a_rotation_is_not_taken_for_rounding(changed, family, dtype):
    def change(own):
        own["W_Q"].add_(0.2 * outer(*own["W_Q"].shape, dtype))
        rotate(own, rotation(), "W_Q", "W_K")

    table, before, after = changed(family, change, dtype=dtype)
    old, new = (
        circuits_of({n: w.double() for n, w in each.items()}, family)["QK"] for each in (before, after)
    )
    relative = torch.linalg.matrix_norm(new - old) / torch.linalg.matrix_norm(old)
    assert table[LAYER, HEAD].values["QK"] == pytest.approx(float(relative), rel=1e-4)
    assert table[LAYER, HEAD].values["rank_QK"] == 1


HALVES_TO_NEIGHBOURS = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
CHANGES = {
    "rotated within pairs": lambda own, family: rotate(
        own, rotation(ROTATED.get(family, ())), "W_Q", "W_K", "b_Q", "b_K"
    ),
    "rotated without its biases": lambda own, family: rotate(
        own, rotation(ROTATED.get(family, ())), "W_Q", "W_K"
    ),
    "rotated": lambda own, _: rotate(own, rotation(), "W_Q", "W_K", "b_Q", "b_K"),
    "permuted": lambda own, _: [
        own[name].copy_(own[name][HALVES_TO_NEIGHBOURS])
        for name in ("W_Q", "W_K", "b_Q", "b_K")
        if name in own
    ],
}


@torch.no_grad()
@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("change", CHANGES)
def test_qk_is_unchanged_if_and_only_if_the_maps_are(family, change):
    one = build(family, **({"num_key_value_heads": 6} if family == "llama" else {}))
    other = copy.deepcopy(one)
    CHANGES[change](slices_of(family, other, HEAD), family)
    ids = torch.tensor([[3, 9, 4, 30, 17, 8, 21]])
    maps = [each(ids, output_attentions=True).attentions for each in (one, other)]
    difference = float((maps[0][LAYER][0, HEAD] - maps[1][LAYER][0, HEAD]).abs().max())
    table = compare_checkpoints(one, other)
    unchanged = table.remarks[0].removeprefix("unchanged in every head: ").split(", ")
    assert ("QK" in unchanged) == (table[LAYER, HEAD].values["QK"] == 0) == (difference < 1e-12)
    assert ("QK" in unchanged) or difference > 1e-3


@torch.no_grad()
def test_permuted_rows_are_named_with_their_order_and_what_follows():
    one = build("llama")
    other = copy.deepcopy(one)
    CHANGES["permuted"](slices_of("llama", other, HEAD), "llama")
    # Head 2 shares its keys with heads 0 and 1, whose queries keep their order.
    assert compare_checkpoints(one, other).notices == [
        "rows of W_K are permuted within heads, from the two halves to neighbouring features (0 4 1 5 2 6 3"
        " 7): L1 H0, L1 H1",
        "rows of W_Q and W_K are permuted within heads, from the two halves to neighbouring features (0 4 1"
        " 5 2 6 3 7), so that positions rotate other features together: L1 H2",
    ]
    (back, *_) = [each for each in compare_checkpoints(other, one).notices if "W_Q and W_K" in each]
    assert "from neighbouring features to the two halves (0 2 4 6 1 3 5 7)" in back


@torch.no_grad()
def test_permuted_rows_are_found_beside_other_changes_and_only_if_they_explain_most():
    one = build("bert")
    other = copy.deepcopy(one)
    own = slices_of("bert", other, HEAD)
    order = torch.tensor([1, 0, 2, 3, 4, 7, 5, 6])
    own["W_V"].copy_(own["W_V"][order] + 0.01 * torch.randn(8, 24, dtype=torch.float64))
    own["W_O"].copy_(own["W_O"][:, order])
    own["W_Q"].copy_(own["W_Q"][order] + 0.2 * torch.randn(8, 24, dtype=torch.float64))
    assert [each for each in compare_checkpoints(one, other).notices if "permuted" in each] == [
        "features of W_V and W_O are permuted within heads, (1 0 2 3 4 7 5 6): L1 H2"
    ]


@torch.no_grad()
def test_norms_of_queries_and_keys_and_unknown_positions_leave_a_rotated_basis_undecided():
    one = build("qwen3")
    for layer in one.layers:
        torch.nn.init.normal_(layer.self_attn.q_norm.weight)
    other = copy.deepcopy(one)
    for part in (other.layers[LAYER].self_attn.q_proj, other.layers[LAYER].self_attn.k_proj):
        heads = part.weight.view(-1, 8, 36)
        heads.copy_(rotation(ROTATED["llama"]) @ heads)
    table = compare_checkpoints(one, other)
    assert table[LAYER, 0].values["QK"] is None
    assert "QK" not in table.remarks[0]
    assert table.notices == [
        "W_Q and W_K change, but W_Qᵀ·W_K does not; what heads attend to is undecided, because their queries"
        " and keys are normalised: L1 H0, L1 H1, L1 H2 and 3 more"
    ]


def test_rotary_positions_that_differ_are_named_where_weights_do_not(tmp_path):
    one = build("llama")
    for name, theta in (("a", 10_000.0), ("b", 500_000.0)):
        one.config.rope_parameters = {"rope_type": "default", "rope_theta": theta}
        one.save_pretrained(tmp_path / name)
    table = compare_checkpoints(tmp_path / "a", tmp_path / "b")
    assert not table.changed
    assert table.notices == [
        "positions are rotated otherwise, so that heads with equal weights attend otherwise: rope_theta is"
        " 10000.0 in A and 500000.0 in B"
    ]


@FAMILIES
def test_a_scaled_value_matrix_has_its_scale_and_full_rank(changed, family):
    table, *_ = changed(family, lambda own: own["W_V"].mul_(1.5))
    heads = [0, 1, 2] if family == "llama" else [HEAD]  # which read the key/value head of head 2
    assert [(row.layer, row.head) for row in table.changed] == [(LAYER, head) for head in heads]
    for row in table.changed:
        assert (row.values["W_V"], row.values["OV"]) == (pytest.approx(0.5), pytest.approx(0.5))
        assert (row.values["rank_W_V"], row.values["rank_OV"]) == (8, 8)
        assert (row.values["W_Q"], row.values["W_O"], row.values["QK"]) == (0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_rank_is_that_before_rounding_to_the_stored_dtype(changed, dtype):
    def change(own):
        for name in ("W_Q", "W_O"):
            own[name].add_(outer(*own[name].shape, dtype))

    values = changed("bert", change, dtype=dtype)[0][LAYER, HEAD].values
    assert (values["rank_W_Q"], values["rank_W_O"]) == (1, 1)


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "gpt_neox", "t5", "albert", "mobilebert"])
def test_equal_checkpoints_are_zero_everywhere(family, tmp_path):
    build(family).save_pretrained(tmp_path)
    table = compare_checkpoints(tmp_path, tmp_path)
    assert {value for row in table.rows for value in row.values.values()} == {0}
    assert not table.changed
    assert not table.notices


def test_all_stacks_are_compared_and_one_can_be_chosen():
    one, other = build("t5"), build("t5")
    with torch.no_grad():
        other.decoder.block[3].layer[1].EncDecAttention.k.weight[8:16] *= 2
    table = compare_checkpoints(one, other)
    assert table.layers == {"encoder": (2, 3), "decoder": (4, 3), "cross": (4, 3)}
    assert [(row.stack, row.layer, row.head) for row in table.changed] == [("cross", 3, 1)]
    assert not compare_checkpoints(one, other, stack="encoder").changed


def test_layers_and_heads_can_be_selected():
    model = build("llama")
    table = compare_checkpoints(model, model, layers=1, heads="2-4")
    assert [(row.layer, row.head) for row in table.rows] == [(1, 2), (1, 3), (1, 4)]


def test_biases_have_columns_of_their_own_and_a_bias_that_was_zero_an_infinite_change():
    one, other = build("bert"), build("bert")
    with torch.no_grad():
        one.encoder.layer[0].attention.self.query.bias[8:16] = 0
        other.encoder.layer[1].attention.output.dense.bias *= 3
    table = compare_checkpoints(one, other)
    assert table[0, 1].values["b_Q"] == inf
    assert [table[1, head].values["b_O"] for head in range(3)] == [pytest.approx(2)] * 3
    assert len(table.changed) == 4
    assert table.ranked("b_Q", top=1).to_dict()["heads"][0]["head"] == 1
    assert table.notices == [
        "b_Q is 0 in A and not in B, so that its relative change is infinite: L0 H1"
    ]


def test_values_that_are_not_finite_have_no_change_and_are_named():
    one, other = build("bert"), build("bert")
    with torch.no_grad():
        other.encoder.layer[0].attention.self.key.weight[16, 3] = torch.nan
    table = compare_checkpoints(one, other)
    values = table[0, 2].values
    assert (values["W_K"], values["QK"], values["rank_W_K"], values["W_Q"]) == (None, None, None, 0)
    assert table.notices == ["NaN or infinity among the weights, which have no change: L0 H2"]
    assert compare_checkpoints(other, other)[0, 2].values["W_K"] == 0


def test_other_tensors_of_attention_that_differ_are_named():
    one, other = build("qwen3"), build("qwen3")
    with torch.no_grad():
        other.layers[1].self_attn.q_norm.weight[3] = 2
        other.layers[1].mlp.up_proj.weight[3] = 2
    table = compare_checkpoints(one, other)
    assert not table.changed
    assert table.notices == [
        "other tensors of attention differ, which belong to no head: layers.1.self_attn.q_norm.weight"
    ]


def test_the_dtype_of_each_is_said():
    model = build("bert").float()
    table = compare_checkpoints(model, copy.deepcopy(model).bfloat16())
    assert table.dtypes == ("float32", "bfloat16")
    assert 0 < table[0, 0].values["W_Q"] < 2**-8
    assert table[0, 0].values["rank_W_Q"] == 0


SIZES = {
    "layers": ({"num_hidden_layers": 3}, "a has 2 layers, b has 3."),
    "heads": ({"num_attention_heads": 4}, "a has 6 heads, b has 4."),
    "kv heads": ({"num_key_value_heads": 3}, "a has 2 key/value heads in layer 0, b has 3."),
    "d_head": ({"head_dim": 10}, "d_head in layer 0 is 8 in a and 10 in b."),
    "d_feat": ({"hidden_size": 48}, "d_feat in layer 0 is 36 in a and 48 in b."),
}


@pytest.mark.parametrize("axis", SIZES)
def test_sizes_that_differ_are_an_error_that_names_the_axis(axis, tmp_path, monkeypatch):
    more, message = SIZES[axis]
    build("llama").save_pretrained(tmp_path / "a")
    build("llama", **more).save_pretrained(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        compare_checkpoints("a", "b")
    assert str(caught.value) == f"a and b cannot be compared: {message}"


def test_a_bias_that_only_one_has_is_an_error():
    with pytest.raises(
        ModelError, match=r"LlamaModel \(B\) has b_Q in layer 0, LlamaModel \(A\) does not"
    ):
        compare_checkpoints(build("llama"), build("llama", attention_bias=True))


def test_other_stacks_are_an_error():
    with pytest.raises(
        ModelError, match=r"has self attention, .* has encoder, decoder and cross attention"
    ):
        compare_checkpoints(build("bert"), build("t5"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 5}, "there is no layer 5"),
        ({"heads": [7]}, "there is no head 7"),
        ({"sort": "KQ"}, "there is no metric KQ: there are W_Q, W_K"),
    ],
)
def test_what_is_not_there_is_an_error(options, message):
    model = build("bert")
    with pytest.raises((ModelError, OptionError), match=message):
        compare_checkpoints(model, model, **options)


@pytest.mark.parametrize("family", swept([*FAMILIES_OF_MODELS], ["bert", "falcon", "qwen3_next"]))
def test_every_family_is_read_on_both_sides(family):
    """Half of each weight of attention is another: each head differs in each of its weights."""
    one = build(family)
    other = copy.deepcopy(one)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.ndim:
                parameter[: max(1, len(parameter) // 2)] *= 1.25
            parameter *= 0.9
    table = compare_checkpoints(one, other)
    assert len(table.changed) == len(table.rows) > 0
    for row in table.rows:
        weights = [value for name, value in row.values.items() if name.startswith("W_")]
        assert len(weights) >= 4
        assert all(0.09 < value < 0.13 for value in weights)


def test_the_parts_of_latent_attention_are_compared_and_have_no_circuits(tmp_path):
    save_tiny("deepseek_v3", tmp_path / "a", head_dim=8, num_key_value_heads=4)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    path = tmp_path / "b/model.safetensors"
    tensors = load_file(path)
    head = read_head(tmp_path / "a", layer=1, head=2)
    part = head["W_UK"]
    tensors[part.tensor][part.start : part.stop] *= 1.5
    tensors[head["W_DKV"].tensor][0] *= 3
    save_file(tensors, path, metadata={"format": "pt"})
    table = compare_checkpoints(tmp_path / "a", tmp_path / "b")
    assert not {"QK", "OV"} & table.metrics.keys()
    assert table[1, 2].values["W_UK"] == pytest.approx(0.5)
    assert table[1, 2].values["rank_W_UK"] == min(part.head_shape)
    layer = [row for row in table.rows if row.layer == 1]
    assert {row.head for row in layer if row.values["W_UK"]} == {2}
    assert len({row.values["W_DKV"] for row in layer}) == 1  # all heads share it
    assert {row.values["rank_W_DKV"] for row in layer} == {1}
    assert {row.layer for row in table.changed} == {1}


def test_only_attention_is_read(tmp_path, monkeypatch):
    build("llama").save_pretrained(tmp_path)
    names, read = [], Safetensors.read

    def recorded(self, name):
        names.append(name)
        return read(self, name)

    monkeypatch.setattr(Safetensors, "read", recorded)
    compare_checkpoints(tmp_path, tmp_path, layers=1)
    modules = [f"layers.1.self_attn.{part}_proj.weight" for part in "qkvo"]
    assert sorted(set(names)) == sorted(modules)
    assert len(names) == 2 * len(modules)  # once for all heads, on each side


def test_neither_torch_nor_transformers_is_imported():
    code = "import attnscope, sys; attnscope.compare_checkpoints('minilm', 'minilm', layers=0)"
    code += "; assert not {'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_progress_is_told_by_layer():
    model, calls = build("bert", num_hidden_layers=4), []
    compare_checkpoints(model, model, progress=lambda *each: calls.append(each))
    shares = [each[1] for each in calls if len(each) == 2 and each[1] is not None]
    assert shares == [0, 0.25, 0.5, 0.75]
