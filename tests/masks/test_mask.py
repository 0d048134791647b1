"""Masks by a rule and by a function are those of torch, and mistakes in them are explained."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from transformers import masking_utils as of_transformers

import attnscope
from attnscope import AttnscopeError

FUNCTIONS = """
import torch

documents = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])


def sliding(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 4)


def packed(b, h, q_idx, kv_idx):
    return (documents[q_idx] == documents[kv_idx]) & (q_idx >= kv_idx)


def by_head(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < h + 1 + 2 * b)


def scored(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx, score - kv_idx, -float("inf"))


def make_sliding(window, sinks=0):
    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & ((q_idx - kv_idx < window) | (kv_idx < sinks))

    return mask_mod


def branches(b, h, q_idx, kv_idx):
    if q_idx >= kv_idx:
        return True
    return False


def number(b, h, q_idx, kv_idx):
    return q_idx - kv_idx


def makes_a_number(window):
    return window


def with_item(b, h, q_idx, kv_idx):
    return kv_idx < documents[b].item()


def with_int(b, h, q_idx, kv_idx):
    return kv_idx < int(documents[b])


def with_list(b, h, q_idx, kv_idx):
    return kv_idx < documents.tolist()[b]
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "masks_of_a_user.py").write_text(FUNCTIONS)
    return "masks_of_a_user.py"


def loop(rule, n_Q, n_K, n_batch=1):
    """A mask written out pair by pair."""
    values = [[[[rule(b, q, k) for k in range(n_K)] for q in range(n_Q)]] for b in range(n_batch)]
    return np.array(values, dtype=bool)


RULES = [
    ("causal", {"nq": 5}, loop(lambda b, q, k: k <= q, 5, 5)),
    ("causal", {"nq": 3, "nk": 5}, loop(lambda b, q, k: k <= q, 3, 5)),
    ("causal", {"nq": 3, "past": 4}, loop(lambda b, q, k: k <= q + 4, 3, 7)),
    ("causal", {"nq": 3, "nk": 5, "align": "bottom-right"}, loop(lambda b, q, k: k <= q + 2, 3, 5)),
    ("causal", {"window": 2, "nq": 5}, loop(lambda b, q, k: q - 2 < k <= q, 5, 5)),
    (["causal", "window:2"], {"nq": 5}, loop(lambda b, q, k: q - 2 <= k <= q, 5, 5)),
    ("window:1,2", {"nq": 4, "nk": 6}, loop(lambda b, q, k: q - 1 <= k <= q + 2, 4, 6)),
    ("prefix:3", {"nq": 6}, loop(lambda b, q, k: k <= q or k < 3, 6, 6)),
    ("lengths:2,4,2", {"nq": 3, "nk": 5}, loop(lambda b, q, k: k < (2, 4, 2)[b], 3, 5, 3)),
    ("none", {"nq": 3, "nk": 4}, loop(lambda b, q, k: True, 3, 4)),
    ("chunk:3", {"nq": 7}, loop(lambda b, q, k: q // 3 == k // 3, 7, 7)),
    (
        ["chunk:3", "window:,0"],
        {"nq": 3, "past": 4},
        loop(lambda b, q, k: (q + 4) // 3 == k // 3 and k <= q + 4, 3, 7),
    ),
    ("window:2,", {"nq": 5}, loop(lambda b, q, k: q - 2 <= k, 5, 5)),
    (
        "causal",
        {"nq": 3, "nk": 2, "past": 4, "align": "after-past"},
        loop(lambda b, q, k: k <= q + 4, 3, 6),
    ),
    (
        ["lengths:3,5", "causal"],
        {"nq": 2, "nk": 6, "align": "lengths"},
        loop(lambda b, q, k: k < (3, 5)[b] and k <= q + (1, 3)[b], 2, 6, 2),
    ),
    (
        ["lengths:2,5,0", "causal"],
        {"nq": 3, "nk": 5, "align": "lengths"},
        loop(lambda b, q, k: k < (2, 5, 0)[b] and k <= q + (-1, 2, -3)[b], 3, 5, 3),
    ),
    (["lengths:2,4", "causal"], {"nq": 5}, loop(lambda b, q, k: k < 2 + 2 * b and k <= q, 5, 5, 2)),
]


@pytest.mark.parametrize(("rule", "options", "expected"), RULES)
def test_a_rule_lets_the_right_pairs_pass(rule, options, expected):
    result = attnscope.mask(rule, **options)
    [mask] = result.masks
    assert (mask.visible == expected).all()
    assert mask.visible.shape == expected.shape
    assert (mask.n_visible, mask.n_pairs) == (expected.sum(), expected.size)
    assert mask.n_blind == (~expected.any(-1)).sum()
    assert mask.n_unseen == (~expected.any(-2)).sum()


@pytest.mark.parametrize("rule", ["causal", ["causal", "window:5"], "window:2,7", "prefix:6"])
@pytest.mark.parametrize(("n_Q", "n_K"), [(12, 20), (13, 20), (12, 22), (14, 23)])
def test_blocks_are_those_of_flex_attention(rule, n_Q, n_K):
    """Also those that the border cuts off."""
    [mask] = attnscope.mask(rule, nq=n_Q, nk=n_K, align="bottom-right", block="3,5").masks
    visible = torch.from_numpy(mask.visible)
    blocks = create_block_mask(
        lambda b, h, q, k: visible[b, h, q, k], 1, 1, n_Q, n_K, device="cpu", BLOCK_SIZE=(3, 5)
    )
    partial, full = int(blocks.kv_num_blocks.sum()), int(blocks.full_kv_num_blocks.sum())
    assert (mask.blocks.partial, mask.blocks.full) == (partial, full)
    assert mask.blocks.empty == blocks.to_dense().numel() - partial - full
    assert mask.blocks.saved == pytest.approx(mask.blocks.empty / blocks.to_dense().numel())


def test_a_file_of_a_mask_has_its_own_sizes(tmp_path):
    visible = np.random.default_rng(0).random((2, 3, 4, 5)) < 0.5
    np.save(tmp_path / "mask.npy", visible)
    for subject in (tmp_path / "mask.npy", str(tmp_path / "mask.npy"), visible, torch.tensor(visible)):
        [mask] = attnscope.mask(subject).masks
        assert (mask.visible == visible).all()
        assert (mask.n_batch, mask.n_head, len(mask.planes)) == (2, 3, 6)
    added = np.where(visible, 0.0, -np.inf)
    assert (attnscope.mask(added).masks[0].visible == visible).all()
    with_rule = attnscope.mask([visible, "causal"]).masks[0]
    assert (with_rule.visible == visible & (np.arange(5) <= np.arange(4)[:, None])).all()


def test_three_axes_of_a_file_are_sequences_or_heads():
    """Heads where only their number fits, as PyTorch broadcasts; sequences otherwise, which is said."""
    see = np.stack([np.tril(np.ones((4, 5), dtype=bool)), np.ones((4, 5), dtype=bool)])
    of_heads = attnscope.mask(see, heads=2)
    assert (of_heads.masks[0].visible == see[None]).all()
    assert (
        of_heads.notices == attnscope.mask(see, batch=2).notices == attnscope.mask(see[:1]).notices == []
    )
    of_sequences = attnscope.mask(see)
    assert (of_sequences.masks[0].visible == see[:, None]).all()
    assert "taken for sequences; heads=2 takes it for heads" in of_sequences.notices[0]


def test_the_attention_of_a_mask_for_each_head_is_pytorchs():
    see = np.stack([np.tril(np.ones((4, 5), dtype=bool)), np.ones((4, 5), dtype=bool)])
    trace = attnscope.compute(
        "sdpa", mask=see, nq=4, nk=5, dk=6, dv=3, heads=2, batch=1, keep=["Q", "K", "V", "out"]
    )
    Q, K, V, out = (trace[name].tensor for name in ("Q", "K", "V", "out"))
    assert torch.allclose(out, F.scaled_dot_product_attention(Q, K, V, torch.tensor(see)), atol=1e-6)


def test_a_cell_larger_than_the_mask_is_the_mask():
    from attnscope.document.markdown import markdown_document

    mask = attnscope.mask(np.tril(np.ones((4, 5), dtype=bool)), cell=10**18)
    assert "0–3 ▒" in markdown_document(mask.document())


@pytest.mark.parametrize("name", ["sliding", "packed", "by_head", "scored"])
def test_a_function_of_a_file_is_what_torch_makes_of_it(name, functions, monkeypatch):
    from attnscope.code.load import mask_functions as module

    namespace = {}
    exec(FUNCTIONS, namespace)
    expected = create_mask(namespace[name], 2, 3, 9, 8, device="cpu")
    for at_once in (2**24, 2 * 3 * 8 * 2):  # all queries at once, and two of them
        monkeypatch.setattr(module, "AT_ONCE", at_once)
        for subject in (f"{functions}:{name}", namespace[name]):
            [mask] = attnscope.mask(subject, nq=9, nk=8, batch=2, heads=3).masks
            visible = torch.from_numpy(mask.visible).expand(2, 3, 9, 8)
            assert torch.equal(visible, expected)


def test_heads_that_see_the_same_are_one(functions):
    [mask] = attnscope.mask(f"{functions}:sliding", nq=9, batch=2, heads=3).masks
    assert len(mask.planes) == 1
    assert (mask.n_batch, mask.pattern) == (2, "causal, at most 4 keys")


def test_a_function_that_makes_one_gets_its_arguments(functions):
    expected = loop(lambda b, q, k: k <= q and (q - k < 3 or k < 2), 9, 9)
    for init in (["window=3", "sinks=2"], {"window": 3, "sinks": 2}):
        result = attnscope.mask(f"{functions}:make_sliding", nq=9, init=init)
        assert result.title == "make_sliding(window=3, sinks=2)"
        assert (result.masks[0].visible == expected).all()
    result = attnscope.mask(f"{functions}:make_sliding", nq=8, init=["window=n_K//2"])
    assert result.masks[0].pattern == "causal, at most 4 keys"
    name = "transformers.masking_utils:sliding_window_causal_mask_function"
    of_model = attnscope.mask(name, nq=9, init=["sliding_window=4"]).masks[0]
    mask_function = of_transformers.sliding_window_causal_mask_function(4)
    mask = of_transformers.sdpa_mask(1, 9, 9, mask_function=mask_function, allow_is_causal_skip=False)
    assert (of_model.visible == mask.numpy()).all()


def test_a_block_mask_shows_itself():
    def mask_mod(b, h, q, k):
        return (q >= k) & (q - k < 3 + h)

    blocks = create_block_mask(mask_mod, 1, 2, 10, 12, device="cpu", BLOCK_SIZE=4)
    [mask] = attnscope.mask(blocks).masks
    assert torch.equal(torch.from_numpy(mask.visible), create_mask(mask_mod, 1, 2, 10, 12, device="cpu"))


MISTAKES = [
    ({"subject": 3}, "this int is neither a mask nor a model", "causal, or another rule"),
    ({"subject": []}, "there is no mask", "causal, or another rule"),
    ({"subject": " "}, "the name of the mask is empty", "causal, or another rule"),
    ({"subject": ["causal", 3]}, "this int is neither a mask nor a model", None),
    (
        {"subject": torch.nn.Linear(2, 3), "text": "hi"},
        "text is for models, and this Linear is code",
        None,
    ),
    (
        {"subject": torch.nn.Linear(2, 3), "nq": 5},
        "nq is for rules and functions, and this Linear is code",
        None,
    ),
    (
        {"subject": "causal", "inputs": torch.ones(2, 3)},
        "inputs is for code, and causal is a rule",
        None,
    ),
    ({"subject": "minilm", "call": "f"}, "call is for code, and minilm is a model", None),
    (
        {"subject": torch.nn.Linear(2, 3), "text": torch.ones(2, 3)},
        "text is of type Tensor and shape (2, 3), but takes a text",
        "audit(module, x) for which positions influence which in a module",
    ),
    ({"subject": "casual"}, "'casual' is neither a rule nor a model", "causal"),
    (
        {"subject": "bisect:insort"},
        "insort takes a, x, lo, hi, key: a mask is",
        "def mask(b, h, q_idx, kv_idx)",
    ),
    ({"subject": [[1, 0], [1, 1]]}, "this int is neither a mask nor a model", "an array; causal"),
    ({"subject": torch.nn.Linear}, "needs in_features and out_features", 'init={"in_features"'),
    ({"subject": "minilm"}, "minilm is a model, whose masks depend on its input", 'text="…"'),
    ({"subject": "window:x"}, "'window:x' is not a mask.", "window:W, window:L,R"),
    ({"subject": ["minilm", "causal"]}, "several masks are rules, and minilm is not one", None),
    ({"subject": "causal", "text": "hi"}, "text is for models, and causal is a rule", None),
    (
        {"subject": "causal", "init": ["x=1"]},
        "init is for functions and code, and causal is a rule",
        None,
    ),
    ({"subject": "minilm", "text": "hi", "nq": 4}, "nq is for rules and functions, and minilm", None),
    ({"subject": "minilm", "text": "hi", "ids": "5"}, "text and ids are two inputs", None),
    ({"subject": "minilm", "text": "hi", "packed": True}, "packed puts several texts into one", None),
    ({"subject": "minilm", "text": ["a", "b"], "pair": "c"}, "pair goes with one text", None),
    ({"subject": "causal", "block": "x"}, "block is 'x'", "block=128, or block="),
    ({"subject": "causal", "cell": 0}, "cell is 0, but takes numbers from 1", "cell=1"),
    ({"subject": "causal", "align": "left"}, "align is 'left'", None),
    ({"subject": "causal", "nq": 2, "align": "lengths"}, "nothing says how many keys", "lengths:N,N,…"),
    ({"subject": "causal", "nq": 0}, "n_Q is 0, but a size is a whole number from 1 up", None),
    ({"subject": "causal", "nq": 10**8}, "100,000,000 queries are too many", None),
    ({"subject": "lengths:3,5", "batch": 3}, "2 lengths (3,5) are given for 3 sequences", None),
    ({"subject": "F:sliding", "nq": 10**6}, "has 1,000,000,000,000 pairs, which take", "fewer queries"),
    ({"subject": "F:sliding", "window": 3}, "window is for rules, and this is a function", None),
    (
        {"subject": "F:make_sliding"},
        "make_sliding takes window, sinks: a mask is a",
        'init={"window": …}',
    ),
    (
        {"subject": "F:make_sliding", "init": ["w=3"]},
        "make_sliding takes window, sinks, and not w",
        None,
    ),
    ({"subject": "F:makes_a_number", "init": ["window=3"]}, "makes_a_number returns a int", None),
    ({"subject": "F:branches"}, "branches raises RuntimeError", "&, | and torch.where"),
    ({"subject": "F:with_item"}, "with_item raises RuntimeError", "the tensor itself, without .item():"),
    ({"subject": "F:with_int"}, "with_int raises RuntimeError", "the tensor itself, without int():"),
    (
        {"subject": "F:with_list"},
        "with_list raises RuntimeError",
        "the tensor itself, without .tolist()",
    ),
    ({"subject": "F:make_sliding", "init": [f"window={'[' * 500}{']' * 500}"]}, "500 brackets", "400"),
    ({"subject": "F:number"}, "number returns int64, but a mask_mod returns bool", None),
    ({"subject": "F:packed", "nq": 12}, "packed raises IndexError: index 9 is out of bounds", None),
]


@pytest.mark.parametrize(("options", "message", "hint"), MISTAKES, ids=lambda value: str(value)[:50])
def test_mistakes_have_a_message_and_a_way_out(options, message, hint, functions):
    subject = options["subject"]
    if isinstance(subject, str):
        options = options | {"subject": subject.replace("F:", f"{functions}:")}
    with pytest.raises(AttnscopeError) as caught:
        attnscope.mask(**options)
    assert message in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")
    assert "--mask" not in (caught.value.hint or "")
