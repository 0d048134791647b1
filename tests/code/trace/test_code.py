"""The corpus in `code/`: attention as people write it. What is right there is right, and what is wrong is wrong."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

CODE = Path(__file__).parent / "code"

# Pairwise different, so that an axis in another's place cannot go unnoticed.
N_BATCH, N_HEAD, N_Q, N_K, D_HEAD, D_V = 2, 3, 5, 7, 4, 6
D_MODEL = N_HEAD * D_HEAD


def load(name):
    """One file of the corpus, imported by its path."""
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", CODE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def split(x, n_head=N_HEAD):
    return x.unflatten(-1, (n_head, -1)).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).flatten(2)


def multihead(module, names):
    """PyTorch's module with the weights of one of ours: the four linears in the order q, k, v, o."""
    q, k, v, o = (module.get_submodule(name) for name in names)
    width = o.out_features
    theirs = nn.MultiheadAttention(width, N_HEAD, bias=q.bias is not None, batch_first=True).eval()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([q.weight, k.weight, v.weight]))
        theirs.out_proj.weight.copy_(o.weight)
        if q.bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([q.bias, k.bias, v.bias]))
            theirs.out_proj.bias.copy_(o.bias)
    return lambda *args, **kwargs: theirs(*args, need_weights=False, **kwargs)[0]


def inputs():
    return torch.randn(N_BATCH, N_Q, D_MODEL), *torch.randn(2, N_BATCH, N_K, D_MODEL)


def test_every_file_is_tested_and_knows_nothing_of_us():
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in CODE.glob("*.py"):
        assert f'"{path.stem}"' in tested, path
        assert "attnscope" not in path.read_text(encoding="utf-8"), path


# The right ones.


@pytest.mark.parametrize("name", ["Absorbed", "Joined", "Filled", "Fused", "Premultiplied"])
def test_latent_attention_is_the_same_when_a_projection_is_absorbed(name):
    corpus = load("absorbed")
    expanded, absorbed = corpus.Expanded(), getattr(corpus, name)()
    absorbed.load_state_dict(expanded.state_dict())
    x = torch.randn(N_BATCH, N_Q, 40)
    close(absorbed(x), expanded(x))


def test_tutorial_sdpa():
    module = load("tutorial_sdpa").ScaledDotProductAttention()
    Q = torch.randn(N_BATCH, N_Q, D_HEAD)
    K, V = torch.randn(N_BATCH, N_K, D_HEAD), torch.randn(N_BATCH, N_K, D_V)
    mask = torch.rand(N_Q, N_K) > 0.3
    for given in (None, mask):
        x, attention = module(Q, K, V, given)
        assert (x.shape, attention.shape) == ((N_BATCH, N_Q, D_V), (N_BATCH, N_Q, N_K))
        close(x, F.scaled_dot_product_attention(Q, K, V, attn_mask=given))


MULTIHEAD = {
    "tutorial_mha_right": ("MultiHeadedAttention", ["lin_Q", "lin_K", "lin_V", "lin_O"]),
    "annotated": ("MultiHeadedAttention", ["linears.0", "linears.1", "linears.2", "linears.3"]),
    "split_merge": ("MultiHeadAttention", ["w_q", "w_k", "w_v", "w_o"]),
}


@pytest.mark.parametrize("name", MULTIHEAD)
def test_multi_head_attention_is_that_of_pytorch(name):
    class_name, linears = MULTIHEAD[name]
    sizes = (N_HEAD, D_MODEL) if name == "annotated" else (D_MODEL, N_HEAD)
    module = getattr(load(name), class_name)(*sizes).eval()
    Q, K, V = inputs()
    out = module(Q, K, V)
    out = out["x"] if isinstance(out, dict) else out
    assert out.shape == (N_BATCH, N_Q, D_MODEL)
    close(out, multihead(module, linears)(Q, K, V))

    mask = torch.rand(N_Q, N_K) > 0.3
    mask[:, 0] = True
    given = mask.expand(N_BATCH, N_Q, N_K) if name == "annotated" else mask
    out = module(Q, K, V, mask=given)
    out = out["x"] if isinstance(out, dict) else out
    close(out, multihead(module, linears)(Q, K, V, attn_mask=~mask))


@pytest.mark.parametrize("name", ["tutorial_mha", "tutorial_mha_right"])
def test_the_tutorials_intermediates(name):
    module = load(name).MultiHeadedAttention(D_MODEL, N_HEAD).eval()
    out = module(*inputs())
    assert {key: tuple(value.shape) for key, value in out.items()} == {
        "Q_feat": (N_BATCH, N_Q, D_MODEL),
        "K_feat": (N_BATCH, N_K, D_MODEL),
        "V_feat": (N_BATCH, N_K, D_MODEL),
        "Q_split": (N_BATCH, N_HEAD, N_Q, D_HEAD),
        "K_split": (N_BATCH, N_HEAD, N_K, D_HEAD),
        "V_split": (N_BATCH, N_HEAD, N_K, D_HEAD),
        "scores": (N_BATCH, N_HEAD, N_Q, N_K),
        "attention": (N_BATCH, N_HEAD, N_Q, N_K),
        "x_raw": (N_BATCH, N_HEAD, N_Q, D_HEAD),
        "x_rsh1": (N_BATCH, N_Q, N_HEAD, D_HEAD),
        "x_rsh2": (N_BATCH, N_Q, D_MODEL),
        "x": (N_BATCH, N_Q, D_MODEL),
    }


def test_annotated_keeps_its_weights():
    module = load("annotated").MultiHeadedAttention(N_HEAD, D_MODEL).eval()
    module(*inputs())
    assert module.attn.shape == (N_BATCH, N_HEAD, N_Q, N_K)


def test_nanogpt():
    gpt = load("nanogpt")
    config = gpt.GPTConfig(block_size=N_Q + 3, n_head=N_HEAD, n_embd=D_MODEL)
    module = gpt.CausalSelfAttention(config).eval()
    x = torch.randn(N_BATCH, N_Q, D_MODEL)
    q, k, v = (split(part) for part in module.c_attn(x).chunk(3, -1))
    expected = module.c_proj(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
    assert module(x).shape == x.shape
    close(module(x), expected)


def turned(x):
    """Rotary positions as complex numbers: dimension i is paired with i + d/2."""
    half = x.size(-1) // 2
    angle = torch.outer(torch.arange(x.size(-2)), 10000.0 ** (-torch.arange(half) / half))
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


def test_grouped():
    n_head, n_kv_head, d_head = 6, 2, 4
    module = load("grouped").GroupedQueryAttention(n_head * d_head, n_head, n_kv_head)
    x = torch.randn(3, N_Q, n_head * d_head)
    q, k = turned(split(module.q_proj(x), n_head)), turned(split(module.k_proj(x), n_kv_head))
    v = split(module.v_proj(x), n_kv_head)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert module(x).shape == x.shape
    close(module(x), module.o_proj(merged(theirs)))


def neighbours_turned(x):
    """Rotary positions along the last axis but one: dimension 2·i is paired with 2·i + 1."""
    d = x.size(-1)
    angle = torch.outer(torch.arange(x.size(-2)), 10000.0 ** (-torch.arange(0, d, 2) / d))
    even, odd = x[..., ::2], x[..., 1::2]
    pairs = [even * angle.cos() - odd * angle.sin(), odd * angle.cos() + even * angle.sin()]
    return torch.stack(pairs, -1).flatten(-2)


def test_expanded_groups():
    n_head, n_kv_head, d_head = 6, 2, 4
    sizes = (n_head * d_head, n_head, n_kv_head, d_head)
    module = load("expanded_groups").GroupedAttention(*sizes)
    x = torch.randn(3, N_Q, n_head * d_head)
    q = neighbours_turned(split(module.q_proj(x), n_head))
    k = neighbours_turned(split(module.k_proj(x), n_kv_head))
    v = split(module.v_proj(x), n_kv_head)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    close(module(x), module.output_proj(merged(theirs)))


def test_low_rank():
    n_head, kv_rank, nope, rope, d_v = 3, 14, 6, 4, 5
    module = load("low_rank").LatentAttention(40, n_head, 11, kv_rank, nope, rope, d_v)
    x = torch.randn(2, N_Q, 40)
    q = split(module.to_q(F.rms_norm(module.to_q_rank(x), (11,))), n_head)
    latent, k_rope = module.to_kv_rank(x).split([kv_rank, rope], -1)
    kv = split(module.to_kv(F.rms_norm(latent, (kv_rank,))), n_head)
    q = torch.cat([q[..., :nope], neighbours_turned(q[..., nope:])], -1)
    k_rope = neighbours_turned(k_rope)[:, None].expand(-1, n_head, -1, -1)
    theirs = F.scaled_dot_product_attention(
        q, torch.cat([kv[..., :nope], k_rope], -1), kv[..., nope:], is_causal=True
    )
    close(module(x), module.out(merged(theirs)))


@pytest.mark.parametrize("n_kv_head", [1, 2])
def test_multi_query(n_kv_head):
    n_head, d_head = 6, 4
    module = load("grouped").MultiQueryAttention(n_head * d_head, n_head, n_kv_head)
    x = torch.randn(3, N_Q, n_head * d_head)
    mask = torch.randn(N_Q, N_Q)
    q, (k, v) = split(module.wq(x), n_head), module.wkv(x).chunk(2, -1)
    k, v = split(k, n_kv_head), split(v, n_kv_head)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    close(module(x, mask), module.wo(merged(theirs)))


def test_cross():
    d_context = 11
    module = load("cross").CrossAttention(D_MODEL, d_context, heads=N_HEAD, dim_head=6).eval()
    x, context = torch.randn(N_BATCH, N_Q, D_MODEL), torch.randn(N_BATCH, N_K, d_context)
    seen = torch.rand(N_BATCH, N_K) > 0.3
    seen[:, 0] = True
    q, k, v = split(module.to_q(x)), split(module.to_k(context)), split(module.to_v(context))
    for mask in (None, seen):
        attn_mask = None if mask is None else mask[:, None, None, :]
        theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        out = module(x, context, mask)
        assert out.shape == (N_BATCH, N_Q, D_MODEL)
        close(out, module.to_out(merged(theirs)))


def bucket(distance, bidirectional, n_bucket, furthest):
    """T5's bucket of one distance (of the key from the query), in plain numbers."""
    first = 0
    if bidirectional:
        n_bucket //= 2
        first = n_bucket if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(0, -distance)
    exact = n_bucket // 2
    if distance < exact:
        return first + distance
    log = math.log(distance / exact) / math.log(furthest / exact)
    return first + min(n_bucket - 1, exact + int(log * (n_bucket - exact)))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_bucketed_bias(bidirectional):
    n_bucket, furthest = 8, 10
    make = load("relative").BucketedBiasAttention
    module = make(D_MODEL, N_HEAD, n_bucket, furthest, bidirectional)
    x, context = torch.randn(N_BATCH, N_Q, D_MODEL), torch.randn(N_BATCH, N_K, D_MODEL)
    buckets = [
        [bucket(j - i, bidirectional, n_bucket, furthest) for j in range(N_K)] for i in range(N_Q)
    ]
    bias = module.relative_attention_bias.weight[torch.tensor(buckets)].permute(2, 0, 1)
    q, k, v = split(module.q(x)), split(module.k(context)), split(module.v(context))
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    assert module(x).shape == x.shape
    close(module(x, context), module.o(merged(theirs)))


def test_relative_bias():
    module = load("relative").RelativeBiasAttention(D_MODEL, N_HEAD, N_Q, N_K)
    x, context = torch.randn(N_BATCH, N_Q, D_MODEL), torch.randn(N_BATCH, N_K, D_MODEL)
    assert sorted({int(i) for i in module.index.flatten()}) == list(range(N_Q + N_K - 1))
    rows = [[module.bias_table[i - j + N_K - 1] for j in range(N_K)] for i in range(N_Q)]
    bias = torch.stack([torch.stack(row) for row in rows]).permute(2, 0, 1)
    q, (k, v) = split(module.q(x)), module.kv(context).chunk(2, -1)
    theirs = F.scaled_dot_product_attention(q, split(k), split(v), attn_mask=bias)
    close(module(x, context), module.proj(merged(theirs)))


@pytest.mark.parametrize("n_mem", [0, 2])
def test_shifted_relative(n_mem):
    module = load("relative").ShiftedRelativeAttention(N_HEAD, D_MODEL, 6)
    n_K = n_mem + N_Q
    w, mems = torch.randn(N_Q, N_BATCH, D_MODEL), torch.randn(n_mem, N_BATCH, D_MODEL)
    r = torch.randn(n_K, D_MODEL)  # of the distances n_K - 1, …, 0
    hidden = torch.ones(N_Q, n_K, dtype=torch.bool).triu(1 + n_mem)

    q, k, v = module.qkv_net(torch.cat([mems, w])).transpose(0, 1).chunk(3, -1)
    q, k, v = split(q)[:, :, n_mem:], split(k), split(v)
    places = module.r_net(r).view(n_K, N_HEAD, -1).transpose(0, 1)
    bias = torch.full((N_BATCH, N_HEAD, N_Q, n_K), -torch.inf)
    for i in range(N_Q):
        for j in range(i + n_mem + 1):
            distance = i + n_mem - j
            turned = (q[:, :, i] + module.r_r_bias) * places[:, n_K - 1 - distance]
            bias[:, :, i, j] = turned.sum(-1) * module.scale
    q = q + module.r_w_bias[None, :, None]
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    out = module(w, r, hidden, mems if n_mem else None)
    assert out.shape == w.shape
    close(out, module.o_net(merged(theirs)).transpose(0, 1))


@pytest.mark.parametrize("kind", ["none", "causal", "mask"])
def test_fused(kind):
    module = load("fused").FusedAttention(D_MODEL, N_HEAD, is_causal=kind == "causal").eval()
    x = torch.randn(N_BATCH, N_Q, D_MODEL)
    bias = {
        "none": torch.zeros(N_Q, N_Q),
        "causal": torch.full((N_Q, N_Q), -torch.inf).triu(1),
        "mask": torch.randn(N_Q, N_Q),
    }[kind]
    q, k, v = (split(part) for part in module.qkv(x).chunk(3, -1))
    attention = (q @ k.mT / D_HEAD**0.5 + bias).softmax(-1)
    out = module(x, attn_mask=bias if kind == "mask" else None)
    assert out.shape == x.shape
    close(out, module.out(merged(attention @ v)))


def test_windowed():
    window, height, width = 2, 4, 6
    module = load("windowed").WindowedSelfAttention(D_MODEL, N_HEAD, window).eval()
    table = nn.init.normal_(module.attn.relative_position_bias_table)
    x = torch.randn(N_BATCH, height, width, D_MODEL)
    places = [(i, j) for i in range(height) for j in range(width)]
    bias = torch.full((N_HEAD, len(places), len(places)), -torch.inf)
    for a, (i, j) in enumerate(places):
        for b, (k, m) in enumerate(places):
            if (i // window, j // window) == (k // window, m // window):
                row = (i - k + window - 1) * (2 * window - 1) + j - m + window - 1
                bias[:, a, b] = table[row].detach()
    q, k, v = (split(part) for part in module.attn.qkv(x.flatten(1, 2)).chunk(3, -1))
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    assert module(x).shape == x.shape
    close(module(x), module.attn.proj(merged(theirs)).view_as(x))


def test_window_attention_takes_a_mask_for_each_window():
    n_window, window = 2, 2
    module = load("windowed").WindowAttention(D_MODEL, (window, window), N_HEAD).eval()
    x = torch.randn(3 * n_window, window**2, D_MODEL)
    mask = torch.randn(n_window, window**2, window**2)
    out = module(x, mask)
    for i in range(3 * n_window):
        close(out[i : i + 1], module(x[i : i + 1], mask[i % n_window : i % n_window + 1]))


# The wrong ones: the shape is right, and the numbers are not.


@pytest.mark.parametrize("name", ["TalkingHeadsAttention", "ReAttention"])
def test_mixed_heads_that_are_not_mixed_are_those_of_pytorch(name):
    module = getattr(load("mixed_heads"), name)(D_MODEL, N_HEAD)
    x = torch.randn(N_BATCH, N_Q, D_MODEL)
    q, k, v = map(split, module.in_proj(x).chunk(3, -1))
    with torch.no_grad():
        for mix in (
            module.mix.parameters() if name == "ReAttention" else (module.mix_logits, module.mix_weights)
        ):
            mix.copy_(torch.eye(N_HEAD))
    if name == "ReAttention":
        module.norm = nn.Identity()
    close(module(x), module.out_proj(merged(F.scaled_dot_product_attention(q, k, v))))


def test_linear_attention_is_that_of_its_weights():
    module = load("linear_attention").LinearAttention(D_MODEL, N_HEAD)
    x = torch.randn(N_BATCH, N_Q, D_MODEL)
    q, k, v = map(split, module.to_qkv(x).chunk(3, -1))
    weights = q.softmax(-1) / D_HEAD**0.5 @ k.softmax(-2).mT
    close(module(x), module.to_out(merged(weights @ v)))
    module = load("linear_attention").SeparateProjections(D_MODEL, N_HEAD)
    q, k, v = (split(each(x)) for each in (module.to_q, module.to_k, module.to_v))
    weights = q.softmax(-1) / D_MODEL**0.5 @ k.softmax(-1).mT
    close(module(x), merged(weights @ v))


@pytest.mark.parametrize("name", ["PaddedShift", "DoubledShift"])
def test_relative_shift_aligns_positions_with_keys(name):
    """Key j of query i has the score of relative position j - i, counted from -n+1, or from -n."""
    module = getattr(load("relative_shift"), name)(D_MODEL, N_HEAD)
    n_position = 2 * N_Q - (name == "PaddedShift")
    scores = torch.randn(N_BATCH, N_HEAD, N_Q, n_position)
    shifted = module.shift(scores)
    first = N_Q - 1 if name == "PaddedShift" else N_Q
    for i in range(N_Q):
        for j in range(N_Q):
            close(shifted[..., i, j], scores[..., i, j - i + first])
    x, positions = torch.randn(N_BATCH, N_Q, D_MODEL), torch.randn(n_position, D_MODEL)
    assert module(x, positions).shape == x.shape


@pytest.mark.parametrize("n_position", [2 * N_Q, 2 * N_Q + 1])
def test_relative_shift_with_time_first(n_position):
    module = load("relative_shift").TimeFirstShift(D_MODEL, N_HEAD)
    w, r = torch.randn(N_Q, N_BATCH, D_MODEL), torch.randn(n_position, D_MODEL)
    assert module(w, r).shape == w.shape


@pytest.mark.parametrize("name", ["InAGenerator", "InALambda", "InAComprehension", "InAFunction"])
def test_heads_are_split_in_any_scope(name):
    module = getattr(load("split_in_scopes"), name)(D_MODEL, N_HEAD)
    x = torch.randn(N_BATCH, N_Q, D_MODEL)
    q, k, v = map(split, module.proj(x).chunk(3, -1))
    close(module(x), merged(F.scaled_dot_product_attention(q, k, v)))


def test_the_tutorials_slips():
    right = load("tutorial_mha_right").MultiHeadedAttention(D_MODEL, N_HEAD).eval()
    module = load("tutorial_mha").MultiHeadedAttention(D_MODEL, N_HEAD).eval()
    module.load_state_dict(right.state_dict())
    ours, theirs = module(*(given := inputs())), right(*given)
    close(ours["scores"] * math.sqrt(D_MODEL), theirs["scores"] * math.sqrt(D_HEAD))

    # Twice as many samples of queries as of keys: the keys are shared out among them.
    Q, K = torch.randn(4, N_Q, D_MODEL), torch.randn(2, 2 * N_Q, D_MODEL)
    out = module(Q, K, K)
    assert out["K_split"].shape == (4, N_HEAD, N_Q, D_HEAD)
    assert out["x"].shape == (4, N_Q, D_MODEL)
    with pytest.raises(RuntimeError, match="must match"):
        right(Q, K, K)


def heads(n_Q=N_Q, n_K=N_K, n_batch=N_BATCH):
    made = ((n_Q, D_HEAD), (n_K, D_HEAD), (n_K, D_V))
    return [torch.randn(n_batch, N_HEAD, *shape) for shape in made]


@pytest.mark.parametrize(
    "name", ["SoftmaxOverQueries", "ScaledByLength", "ScaleMultiplied", "ScaledByWidth"]
)
def test_wrong_weights(name):
    Q, K, V = heads()
    x = getattr(load("wrong"), name)()(Q, K, V)
    right = F.scaled_dot_product_attention(Q, K, V)
    assert x.shape == right.shape
    assert x.isfinite().all()
    assert not torch.allclose(x, right, atol=1e-2)


def test_wrong_mask_after_softmax():
    Q, K, V = heads()
    mask = torch.rand(N_Q, N_K) > 0.3
    x = load("wrong").MaskAfterSoftmax()(Q, K, V, mask)
    right = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)
    assert x.shape == right.shape
    assert not torch.allclose(x, right, atol=1e-2)
    close(
        load("wrong").MaskAfterSoftmax()(Q, K, V, mask | True), F.scaled_dot_product_attention(Q, K, V)
    )


def test_wrong_mask_without_axes():
    module = load("wrong").MaskWithoutAxes()
    padding = torch.zeros(N_Q, N_K, dtype=torch.bool)
    padding[1, -2:] = padding[3, -1:] = True
    with pytest.raises(RuntimeError, match="must match"):
        module(*heads(), padding[:N_BATCH])
    for n_batch in (1, N_Q):
        Q, K, V = heads(n_batch=n_batch)
        right = F.scaled_dot_product_attention(Q, K, V, attn_mask=~padding[:n_batch, None, None])
        x = module(Q, K, V, padding[:n_batch])
        assert x.shape == right.shape
        assert torch.allclose(x, right, atol=1e-5) == (n_batch == 1)


def test_wrong_fully_masked_row():
    x = load("wrong").FullyMaskedRow()(*heads())
    assert x.shape == (N_BATCH, N_HEAD, N_Q, D_V)
    assert x[:, :, 0].isnan().all()
    assert x[:, :, 1:].isfinite().all()


def test_wrong_log_of_negative():
    x = load("wrong").LogOfNegative()(*heads())
    assert x.shape == (N_BATCH, N_HEAD, N_Q, D_V)
    assert x.isnan().all()


def test_wrong_query_and_key_swapped():
    module = load("wrong").QueryAndKeySwapped()
    Q, K, V = heads(n_K=N_Q)
    right = F.scaled_dot_product_attention(Q, K, V)
    assert module(Q, K, V).shape == right.shape
    assert not torch.allclose(module(Q, K, V), right, atol=1e-2)
    close(module(Q, K, V), F.scaled_dot_product_attention(K, Q, V))
    with pytest.raises(RuntimeError, match=r"must match|batch2"):
        module(*heads())


@pytest.mark.parametrize("name", ["HeadsNotTransposedBack", "SplitWithoutTranspose", "HardCodedBatch"])
def test_wrong_views(name):
    module = getattr(load("wrong"), name)(D_MODEL, N_HEAD)
    theirs = multihead(module, ["w_q", "w_k", "w_v", "w_o"])
    for n_batch in (2, 4):
        x = torch.randn(n_batch, N_Q, D_MODEL)
        assert module(x).shape == x.shape
        right = name == "HardCodedBatch" and n_batch == 2
        assert torch.allclose(module(x), theirs(x, x, x), atol=1e-5) == right


def test_landmark_attention_approximates_that_of_all_keys():
    module = load("landmarks").LandmarkAttention(D_MODEL, N_HEAD, 2)
    weights = torch.tensor([[0.7, 0.3], [0.2, 0.8]]).expand(2, 1, 2, 2)
    close(weights @ module.inverse(weights), torch.eye(2).expand(2, 1, 2, 2))
    module = load("landmarks").LandmarkAttention(D_MODEL, N_HEAD, N_K)  # each key is a landmark
    x, mask = torch.randn(N_BATCH, N_K, D_MODEL), torch.ones(N_BATCH, N_K)
    q, k, v = map(split, module.to_qkv(x).chunk(3, -1))
    torch.testing.assert_close(
        module(x, mask), merged(F.scaled_dot_product_attention(q, k, v)), rtol=0.1, atol=0.1
    )


def test_rotary_complex():
    """Complex numbers turn pairs as sines and cosines do."""
    module = load("rotary_complex").RotaryAttention(D_MODEL, N_HEAD)
    x, angles = torch.randn(N_BATCH, N_Q, D_MODEL), torch.rand(N_Q, D_HEAD // 2)
    q, k, v = (split(each(x)) for each in (module.to_q, module.to_k, module.to_v))

    def rotated(y):
        even, odd = y[..., 0::2], y[..., 1::2]
        turned = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
        return torch.stack(turned, -1).flatten(-2)

    out = module(x, torch.polar(torch.ones_like(angles), angles))
    close(out, merged(F.scaled_dot_product_attention(rotated(q), rotated(k), v)))


def test_configured():
    code, x = load("configured"), torch.randn(N_BATCH, N_Q, D_MODEL)
    module = code.Attention(code.Config(n_embd=D_MODEL, n_head=N_HEAD))
    q, (k, v) = split(module.q(x)), (split(each) for each in module.kv(x).chunk(2, -1))
    close(module(x), merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
    by_dict = code.ByDict({"dim": D_MODEL, "heads": N_HEAD})
    q, k, v = (split(each) for each in by_dict.qkv(x).chunk(3, -1))
    close(by_dict(x), merged(F.scaled_dot_product_attention(q, k, v)))
    handed = code.Handed(D_MODEL, N_HEAD, D_HEAD, *(nn.Linear(D_MODEL, D_MODEL) for _ in range(4)))
    q, k, v = (split(each(x)) for each in (handed.q_proj, handed.k_proj, handed.v_proj))
    close(handed(x), handed.out_proj(merged(F.scaled_dot_product_attention(q, k, v))))
