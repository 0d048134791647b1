"""Families name and pack their matrices as the table says: asked of models that transformers builds.

Nothing of this looks at how a model's code splits what it projects to. Most models hand queries, keys and values
to transformers' registry of attention functions: there they are compared with what the slices make. Of the others, a
slice is changed, and the maps of the heads that it belongs to change, and no other.
"""

import pytest
import torch

from attnscope.base.arrays import numbers
from attnscope.base.errors import ModelError
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.layouts import LAYOUTS, PARTS, Packing, choose_stack, find_stacks
from attnscope.model.files.tensors import open_weights
from attnscope.model.weights.head_weights import read_head
from tests.model.run.families import ASKED, CHANGED, FAMILIES, Watched, build, save
from tests.model.run.tiny import save_tiny
from tests.sweeps import swept

AS_PROJECTED = {
    *("bert roberta electra xlm-roberta camembert ernie albert distilbert gpt2 mobilebert".split()),
    *("bert decoder", "gpt_bigcode", "gpt_bigcode multi-head"),
    *(
        "t5 mt5 bart mbart marian m2m_100 vit deit beit dinov2 clip metaclip_2 siglip wav2vec2 hubert jamba".split()
    ),
}
"""Families whose queries and keys reach attention as they were projected. The others turn them by their positions,
not the first one's; and scale or normalise them, which keeps their directions."""


SOME = [
    "bert",
    "albert",
    "bert decoder",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "llama",
    "phi3",
    "t5",
    "bart",
    "clip",
]
"""What lies apart, stacked, in one matrix, transposed, in groups, in several stacks and towers."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that returns a family's checkpoint, saved once for several tests."""
    folders = {}

    def checkpoint(family: str) -> Checkpoint:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            save(family, folders[family])
        return Checkpoint(family, folders[family])

    return checkpoint


def stacks_of(checkpoint):
    return find_stacks(open_weights(checkpoint).names, checkpoint.config(), checkpoint.name)


def stack_in(model, name):
    """Return the same stack in a loaded model, whose modules may have other names than its files."""
    return choose_stack(find_stacks(model.state_dict(), model.config.to_dict(), "model"), name, "model")


def slices_of(head):
    return {s.name: torch.tensor(numbers(s.array, s.dtype), dtype=torch.float64) for s in head.weights}


def heads_of(checkpoint, stack, layer):
    first = read_head(checkpoint, stack=stack, layer=layer)
    return [read_head(checkpoint, stack=stack, layer=layer, head=head) for head in range(first.n_head)]


def direction(x):
    """Of the first position, where nothing is turned."""
    return torch.nn.functional.normalize(x[..., :1, :], dim=-1)


def assert_close(ours, theirs, what, tolerance=1e-10):
    assert ours.shape == theirs.shape, what
    assert float((ours - theirs).abs().max()) < tolerance, what


@pytest.mark.few(4)
@pytest.mark.parametrize("family", swept(ASKED, SOME))
def test_what_each_slice_makes_is_what_attention_gets(saved, family):
    checkpoint = saved(family)
    model = build(family, "watched")
    watched = Watched(model)
    attended = 0
    for stack in stacks_of(checkpoint):
        theirs = stack_in(model, stack.name)
        for layer, number in stack.numbers.items():
            modules = {part: theirs.module(part, layer) for part in PARTS}
            turn = (
                sum(other == number for other in list(stack.numbers.values())[:layer])
                if family == "albert"
                else 0
            )
            (asked,) = [
                calls for name, calls in watched.asked.items() if modules["Q"].startswith(name + ".")
            ]
            query, key, value, x = asked[turn]
            given = {part: watched.inputs[modules[part]][turn] for part in PARTS}
            made_of_all_heads = 0
            for head in heads_of(checkpoint, stack.name, layer):
                slices = slices_of(head)
                kv_head = head.head // (head.n_head // head.n_kv_head)
                for part, heads in (
                    ("Q", query[:, head.head]),
                    ("K", key[:, kv_head]),
                    ("V", value[:, kv_head]),
                ):
                    made = given[part] @ slices[f"W_{part}"].mT + slices.get(f"b_{part}", 0)
                    what = f"{family} {stack.name} W_{part} of layer {layer}, head {head.head}"
                    made = made.reshape(heads.shape)
                    if part == "V" or family in AS_PROJECTED:
                        assert_close(made, heads, what)
                    else:
                        assert_close(direction(made), direction(heads), what, 1e-6)  # turned in float32
                made_of_all_heads += x[:, :, head.head] @ slices["W_O"].mT
            out = watched.outputs[modules["O"]][turn]
            made = (made_of_all_heads + slices.get("b_O", 0)).reshape(out.shape)
            assert_close(made, out, f"{family} {stack.name} W_O of layer {layer}")
            assert (head.n_head, head.n_kv_head, head.d_head) == (
                query.shape[1],
                key.shape[1],
                query.shape[3],
            )
            attended += 1
    assert attended == sum(len(calls) for calls in watched.asked.values())  # no layer was overlooked


def change(model, stack, layer, piece, by):
    """Multiply a head's part of one of a loaded model's parameters."""
    kind = "weight" if piece.name.startswith("W") else "bias"
    parameter = model.get_parameter(stack.tensor(piece.name[-1], layer, kind))
    parameter.data.narrow(piece.axis, piece.start, piece.stop - piece.start).mul_(by)


@pytest.mark.parametrize("family", swept(CHANGED, ["bloom", "falcon"]))
def test_changing_a_slice_changes_its_heads_and_no_other(saved, family):
    checkpoint = saved(family)
    (stack,) = stacks_of(checkpoint)
    layer = max(stack.numbers)

    def run(*changes):
        """The layer's maps and output where each head's pieces are multiplied by a number."""
        model = build(family)
        own = stack_in(model, stack.name)
        for head, name, by in changes:
            for piece in head.weights:
                if piece.name in (f"W_{name}", f"b_{name}") and piece.axis is not None:
                    change(model, own, layer, piece, by)
        watched = Watched(model, output_attentions=True)
        return watched.result.attentions[-1], watched.outputs[own.module("O", layer)][0]

    maps, _ = run()
    for head in heads_of(checkpoint, None, layer)[1:]:
        group = head.n_head // head.n_kv_head
        sharing = [h for h in range(head.n_head) if h // group == head.head // group]
        for name, heads in (("Q", [head.head]), ("K", sharing)):
            changed, _ = run((head, name, -1.5))
            differing = (changed - maps).abs().amax((0, 2, 3)) > 1e-9
            assert differing.nonzero().flatten().tolist() == heads, f"W_{name} of head {head.head}"
        silent = [(read_head(checkpoint, layer=layer, head=h), "O", 0.0) for h in sharing]
        (_, before), (_, after) = run(*silent), run(*silent, (head, "V", -1.5))
        assert_close(after, before, f"W_V and W_O of head {head.head}")
        (_, before), (_, after) = run(*silent[1:]), run(*silent[1:], (head, "V", -1.5))
        assert (after - before).abs().max() > 1e-6


@pytest.mark.parametrize("family", swept(FAMILIES, ["jamba", "falcon multi-query", "qwen3_next"]))
def test_arrays_are_the_models_parameters(saved, family):
    checkpoint = saved(family)
    model = build(family)
    for stack in stacks_of(checkpoint):
        layer = max(stack.numbers)
        theirs = stack_in(model, stack.name)
        head = heads_of(checkpoint, stack.name, layer)[-1]
        for piece in head.weights:
            kind = "weight" if piece.name.startswith("W") else "bias"
            whole = model.get_parameter(theirs.tensor(piece.name[-1], layer, kind)).data
            own = (
                whole
                if piece.axis is None
                else whole.narrow(piece.axis, piece.start, piece.stop - piece.start)
            )
            own = own.mT if piece.transposed else own
            assert piece.stored_shape == tuple(whole.shape)
            assert torch.equal(torch.tensor(piece.array), own), piece.name
            assert piece.head_shape == tuple(own.shape)


ELSEWHERE = {"altclip": {}, "deepseek_v3": {}, "kimi_linear": {"layer_types": ["full_attention"] * 4}}
"""Families whose rows are tested in `test_latent.py` and `tests/cli/test_families.py`."""


@pytest.mark.sweep
def test_every_row_of_the_table_is_asked_of_a_model(saved, tmp_path):
    asked = set()
    for family, sizes in ELSEWHERE.items():
        model = save_tiny(family, tmp_path / family, **sizes)
        checkpoint = Checkpoint(family, tmp_path / family)
        for names in (open_weights(checkpoint).names, model.state_dict()):
            asked |= {stack.layout for stack in find_stacks(names, checkpoint.config(), family)}
    for family in FAMILIES:
        asked |= {stack.layout for stack in stacks_of(saved(family))}
        model = build(family)
        asked |= {
            stack.layout for stack in find_stacks(model.state_dict(), model.config.to_dict(), family)
        }
    others = {"NeoMME"}  # whose fields differ per layer: `tests/model/weights/test_verify.py` reads it
    assert {layout.family for layout in set(LAYOUTS) - asked} == others


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("bert", {"self": (2, 3, 3, 24, 8)}),
        ("bert decoder", {"self": (2, 3, 3, 24, 8), "cross": (2, 3, 3, 24, 8)}),
        ("albert", {"self": (5, 3, 3, 24, 8)}),
        ("llama", {"self": (2, 6, 2, 36, 8)}),
        ("phi3", {"self": (2, 6, 2, 48, 8)}),
        ("gpt_bigcode", {"self": (2, 3, 1, 24, 8)}),
        ("falcon", {"self": (2, 6, 2, 24, 4)}),
        ("qwen3_next", {"self": (4, 6, 2, 36, 8)}),
        ("jamba", {"self": (4, 6, 2, 48, 8)}),
        ("t5", {"encoder": (2, 3, 3, 20, 8), "decoder": (4, 3, 3, 20, 8), "cross": (4, 3, 3, 20, 8)}),
        (
            "whisper",
            {"encoder": (2, 3, 3, 24, 8), "decoder": (3, 4, 4, 24, 6), "cross": (3, 4, 4, 24, 6)},
        ),
        ("clip", {"text": (2, 3, 3, 24, 8), "vision": (3, 5, 5, 20, 4)}),
        ("gemma3", {"text": (2, 6, 2, 36, 8), "vision": (3, 5, 5, 20, 4)}),
    ],
)
def test_stacks_are_told_with_their_sizes_and_the_first_is_the_one_to_take(saved, family, expected):
    checkpoint = saved(family)
    found = {}
    for stack in stacks_of(checkpoint):
        head = read_head(checkpoint, layer=max(stack.numbers), stack=stack.name)
        found[stack.name] = (head.n_layer, head.n_head, head.n_kv_head, head.d_feat, head.d_head)
    assert list(found.items()) == list(expected.items())
    layer = min(stacks_of(checkpoint)[0].numbers)
    assert read_head(checkpoint, layer=layer).stack == next(iter(expected))


def test_layers_that_share_weights_read_those_of_their_group(saved):
    (stack,) = stacks_of(saved("albert"))
    ran = Watched(build("albert", "watched")).order
    assert [stack.module("Q", layer).removesuffix(".query") for layer in range(5)] == ran


def test_layers_without_attention_are_counted(saved):
    (stack,) = stacks_of(saved("qwen3_next"))
    assert (stack.n_layer, list(stack.numbers)) == (4, [3])


def names_of(*prefixes, layers=2, modules="q_proj o_proj"):
    return [
        f"{p}layers.{i}.self_attn.{m}.weight"
        for p in prefixes
        for i in range(layers)
        for m in modules.split()
    ]


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        (["model."], ["self"]),
        ([""], ["self"]),
        (["language_model.model."], ["self"]),
        (["vision_tower.vision_model.encoder.", "language_model.model."], ["text", "vision"]),
        (["model.visual.", "model.language_model."], ["text", "vision"]),
        (["visual.", "model."], ["text", "vision"]),
        (["audio_tower.", "language_model.model."], ["text", "audio"]),
        (["model.decoder.", "model.encoder."], ["encoder", "decoder"]),
        (["encoder.encoder.", "decoder.model.decoder."], ["encoder", "decoder"]),
        (["question_encoder.", "passage_encoder."], ["encoder", "passage_encoder.layers"]),
    ],
)
def test_what_stands_before_the_layers_names_the_stack(prefixes, expected):
    assert [stack.name for stack in find_stacks(names_of(*prefixes), {}, "x")] == expected


def test_the_stack_with_most_layers_keeps_a_name_that_two_have():
    names = names_of("model.", layers=5) + names_of("mtp.", layers=1)
    assert [(s.name, s.n_layer) for s in find_stacks(names, {}, "x")] == [("self", 5), ("mtp.layers", 1)]


def test_what_stands_before_the_layout_is_kept():
    modules = ["attention.self.query", "attention.output.dense"]
    names = [f"model.text.encoder.layer.{i}.{m}.weight" for i in range(12) for m in modules]
    (stack,) = find_stacks(names, {}, "x")
    assert (stack.prefix, stack.n_layer) == ("model.text.encoder.layer.", 12)
    assert stack.tensor("K", 11, "bias") == "model.text.encoder.layer.11.attention.self.key.bias"


def test_names_that_two_families_give_to_different_things_are_told_apart_by_the_config():
    names = names_of("model.")
    assert find_stacks(names, {"model_type": "llama"}, "x")[0].layout.packing is Packing.APART
    assert find_stacks(names, {"model_type": "qwen3_next"}, "x")[0].layout.packing is Packing.GATED
    nested = {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}
    assert find_stacks(names, nested, "x")[0].layout.packing is Packing.GATED


def test_a_model_without_attention_is_refused():
    with pytest.raises(ModelError) as caught:
        find_stacks(["backbone.layers.0.mixer.in_proj.weight"], {}, "mamba")
    assert (
        caught.value.message
        == "mamba has no attention weights that attnscope recognizes among its 1 tensors."
    )
    assert "a checkpoint of BERT, ALBERT, DistilBERT" in caught.value.hint


def test_every_layout_names_its_projections():
    for layout in LAYOUTS:
        assert len(layout.modules.split()) == (
            2 if layout.packing in (Packing.STACKED, Packing.GROUPED) else 4
        )


@pytest.mark.parametrize("packing", Packing)
@pytest.mark.parametrize(("n_head", "n_kv_head"), [(6, 2), (3, 3), (5, 1)])
def test_heads_share_no_slot_that_they_do_not_share(packing, n_head, n_kv_head):
    used = {"Q": set(), "K": set(), "V": set()}
    for head in range(n_head):
        for part, slots in used.items():
            slots.add(packing.slot(part, head, n_head, n_kv_head))
            assert packing.slot(part, head, n_head, n_kv_head) < packing.slots(part, n_head, n_kv_head)
    assert [len(slots) for slots in used.values()] == [n_head, n_kv_head, n_kv_head]
    if packing.fused:
        assert set.union(*used.values()) == set(range(n_head + 2 * n_kv_head))
