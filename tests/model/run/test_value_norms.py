"""‖v_j W_O^h‖ is what loops over heads and keys find, and no layer is weighed whose W_O is not understood."""

from __future__ import annotations

import pytest
import torch
from transformers.pytorch_utils import Conv1D

import attnscope
from attnscope.base.errors import ModelError
from attnscope.model.run.attention_hook import observing
from attnscope.model.run.output_projection import OutputProjection
from attnscope.model.run.value_norms import (
    NotProjectedError,
    UnreadableMatrixError,
    ValueNorms,
    check_projected,
    output_matrix,
    value_norms,
)
from tests.model.effects.families import build as family_of_effects
from tests.model.run.families import FAMILIES, Watched, build
from tests.sweeps import swept

N_HEAD, N_KV_HEAD, D_V, D_FEAT = 6, 3, 4, 7
PROJECTION = OutputProjection("out", N_HEAD, D_V)

NOT_CAPTURED = """
    mpnet deberta-v2 roformer rembert xlm gptj gpt_neo bloom falcon mpt blip_vision_model
""".split()
CAPTURED = [name for name in FAMILIES if name.split()[0] not in NOT_CAPTURED and name != "qwen3_next"]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def filled(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        parameter.data = drawn(*parameter.shape)
    return module


def run(model: torch.nn.Module) -> object:
    """Run a model of a family on something that it reads, looks at or hears."""
    return Watched.run(object.__new__(Watched), model)


def test_the_norms_are_those_of_a_loop_over_heads_and_keys():
    value, matrix = drawn(2, N_KV_HEAD, 5, D_V), drawn(N_HEAD, D_V, D_FEAT)
    norms = value_norms(value, matrix)
    assert norms.shape == (2, N_HEAD, 5)
    for batch in range(2):
        for head in range(N_HEAD):
            for key in range(5):
                v = value[batch, head // 2, key]
                product = [sum(v[i] * matrix[head, i, o] for i in range(D_V)) for o in range(D_FEAT)]
                assert norms[batch, head, key] == pytest.approx(sum(x * x for x in product) ** 0.5)


def test_long_texts_are_measured_in_parts(monkeypatch):
    value, matrix = drawn(2, N_KV_HEAD, 11, D_V), drawn(N_HEAD, D_V, D_FEAT)
    whole = value_norms(value, matrix)
    monkeypatch.setattr("attnscope.model.run.value_norms.AT_ONCE", 3 * 2 * D_FEAT)
    torch.testing.assert_close(value_norms(value, matrix), whole)


def test_a_head_of_zero_values_has_norms_of_zero():
    value = drawn(1, N_KV_HEAD, 5, D_V)
    value[:, 1] = 0
    norms = value_norms(value, drawn(N_HEAD, D_V, D_FEAT))[0]
    assert bool((norms[2:4] == 0).all())
    assert bool((norms[[0, 1, 4, 5]] > 0).all())


@pytest.mark.parametrize("kind", ["Linear", "Conv1D"])
def test_a_matrix_times_a_heads_output_is_what_the_module_computes(kind):
    wide = N_HEAD * D_V
    module = filled(torch.nn.Linear(wide, D_FEAT) if kind == "Linear" else Conv1D(D_FEAT, wide))
    known = output_matrix(module, PROJECTION)
    x = drawn(3, N_HEAD, D_V)
    ours = sum(x[:, head] @ known.matrix[head] for head in range(N_HEAD)) + known.bias
    torch.testing.assert_close(ours, module(x.flatten(1)))


def test_other_modules_are_refused_by_their_names():
    class Quantized(torch.nn.Linear):
        pass

    with pytest.raises(UnreadableMatrixError, match="is a Quantized, whose matrix"):
        output_matrix(Quantized(N_HEAD * D_V, D_FEAT), PROJECTION)
    elsewhere = torch.nn.Linear(N_HEAD * D_V, D_FEAT, device="meta")
    with pytest.raises(UnreadableMatrixError, match="on another device"):
        output_matrix(elsewhere, PROJECTION)


def test_what_does_not_go_through_the_matrix_alone_is_explained():
    module = filled(torch.nn.Linear(N_HEAD * D_V, D_FEAT)).requires_grad_(False)
    known, output = output_matrix(module, PROJECTION), drawn(2, 3, N_HEAD, D_V)
    x = output.flatten(2)
    difference, tolerance = check_projected(known, output, x, module(x))
    assert difference <= tolerance < 1e-12
    by_width, few = output.transpose(2, 3).flatten(2), x[:, :2]
    for reason, read, put_out in (
        ("a gate or a norm", x * 1.01, module(x * 1.01)),
        ("a gate or a norm", by_width, module(by_width)),
        ("they differ by", x, module(x) * 1.01),
        ("they differ by", x, module(x) - module.bias),
        ("other than", few, module(few)),
    ):
        with pytest.raises(NotProjectedError, match=reason):
            check_projected(known, output, read, put_out)


def weighed(model: torch.nn.Module) -> int:
    """Run a model whose layers are all weighed, and return how many attend."""
    norms, seen = ValueNorms("some", model, lambda: run(model)), []

    def see(call):
        of_call = norms.of(call)
        norms.expect(call.path, call.output)
        seen.append(of_call)
        assert of_call.shape == (call.query.shape[0], call.n_head, call.key.shape[2])

    with torch.no_grad(), norms.checked(), observing(model, see):
        run(model)
    return len(seen)


@pytest.mark.parametrize("family", swept(CAPTURED, default=["bert", "gpt2", "llama", "t5"]))
def test_every_layers_projection_is_found_and_explains_its_output(family):
    assert weighed(build(family)) >= 2


def test_a_gate_between_the_heads_and_their_projection_is_refused():
    with pytest.raises(ModelError, match=r"layers\.3\.self_attn, what enters its output projection"):
        weighed(build("qwen3_next", "sdpa"))


def test_a_quantized_projection_is_refused_by_its_layer_and_its_class():
    class Quantized(torch.nn.Linear):
        pass

    model = build("bert", "sdpa")
    model.encoder.layer[1].attention.output.dense.__class__ = Quantized
    said = r"layer\.1\.attention\.self, its output projection is a Quantized"
    with pytest.raises(ModelError, match=said):
        weighed(model)


@pytest.mark.parametrize(
    ("family", "norm"),
    [("gemma2", "model.layers.0.post_attention_layernorm"), ("llama", None), ("bert", None)],
)
def test_a_norm_that_reads_what_w_o_puts_out_is_said(family, norm):
    model = family_of_effects(family)
    maps = attnscope.attention_maps(model, ids=[3, 4, 5, 6], layer=0, head=0, weigh="value")
    heads = attnscope.measure_heads(model, ids=[3, 4, 5, 6], weigh="value")
    for notices in (maps.notices, heads.notices):
        said = [each for each in notices if "behind W_O" in each]
        assert [each.split()[0] for each in said] == ([] if norm is None else [norm])
