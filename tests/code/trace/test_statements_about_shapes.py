"""What docstrings, annotations and patterns say about shapes, checked; and what only resembles a shape."""

import pytest

from attnscope.code.trace.comments.check import check_source
from attnscope.code.trace.comments.parse import shape_comments, shape_like
from attnscope.observe.axes.expressions import parse_expression
from attnscope.observe.trace import Step

SIZES = {"n_batch": 4, "n_head": 5, "n_Q": 7, "n_K": 9, "d_feat": 30}
Q = ("n_batch", "n_Q", "d_feat")
K = ("n_batch", "n_K", "d_feat")
SPLIT = ("n_batch", "n_head", "n_Q", "d_feat/n_head")


def step(name, line, *dims, how="f(x)", **more) -> Step:
    sizes = tuple(int(parse_expression(dim).size(SIZES)) for dim in dims)
    return Step(name, dims, sizes, "float32", how, 0, line=line, **more)


def report(text: str, *steps: Step):
    return check_source(text, steps, sizes=SIZES)


def outcome(text: str, *steps: Step) -> tuple:
    """Return how many statements are true, the lines of those that are not, and of those unread."""
    result = report(text, *steps)
    return result.true, [wrong.line for wrong in result.wrong], result.unread


# Comments in further notations.


@pytest.mark.parametrize(
    "comment",
    [
        "# (B x H x L x D_k)", "# [B x H x L x D_k]", "# (n_batch x n_head x n_Q x d)", "# (B × H × L × D_k)",
        "# (B H L D_k)", "# [b h n d]", "# [... n d]", "# (4 x H x 7 x D_k)", "# scores: (B x H x L x D)",
        "# (B x H x L x D_k), the queries",
    ],
)  # fmt: skip
def test_axes_may_be_divided_by_x_or_by_spaces(comment):
    assert outcome(f"scores = f(x)  {comment}\n", step("scores", 1, *SPLIT)) == (1, [], [])


def test_such_a_comment_that_is_wrong_is_found():
    (wrong,) = report("y = f(x)  # (B x n_Q x n_head x D_k)\n", step("y", 1, *SPLIT)).wrong
    assert wrong.message == (
        "line 1: the comment says y is (B x n_Q x n_head x D_k), but it is"
        " [n_batch, n_head, n_Q, d_feat/n_head] (4×5×7×6): axis 1 is n_head, not n_Q."
    )


@pytest.mark.parametrize(
    "comment",
    [
        "# (see [1, 2])", "# see (B, T)[1]", "# (x, y)", "# (i, j)", "# [x y z]", "# (x, y) are coordinates", "# [0, 1]",
        "# [1, 2]", "# (q, k)", "# (q, k) of this layer", "# (optional, deprecated)", "# (not used, see above)", "# (Smith, 2017)",
        "# f(B, T)", "# x[B, T]", "# type: (B, T) -> C", "# in $[0, T]$", "# (a bit slower)", "# (for all heads)", "# (TODO)",
        "# (left, right)", "# [3, 5]", "# (1.5, 2)", "# ()", "# (e.g. a, b)", "# (yes, no)",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_shape_is_never_wrong(comment):
    steps = [step("q", 1, *Q), step("k", 2, *K), step("y", 3, *SPLIT)]
    assert report(f"q = f(x)\nk = f(x)\ny = f(q, k)  {comment}\n", *steps).wrong == []


@pytest.mark.parametrize(
    "comment",
    [
        "# (B, T)[0]", "# the shape is (B, T, C)", "# -> three of (B, T, C)", "# TODO (B, T)", "# (B, T) x (T, C)",
        "# gives a list of [(B, T)]", "# Output has shape `[seq_len, batch_size, heads]`",
    ],
)  # fmt: skip
def test_what_looks_like_a_shape_and_cannot_be_read_is_counted(comment):
    assert outcome(f"q = 1\ny = f(x)  {comment}\n", step("y", 2, *Q)) == (0, [], [2])


@pytest.mark.parametrize("text", ["f(x)  # (B, T)\n", "y = 1  # z: (B, T)\n", "# (B, T)\ny = 1\n"])
def test_a_shape_without_a_tensor_is_counted(text):
    assert outcome(text) == (0, [], [1])


@pytest.mark.parametrize("comment", ["# scores", "# noqa: E501", "# type: ignore[x]", "# (see the paper)", "# f(B, T)"])  # fmt: skip
def test_other_comments_are_not_counted(comment):
    assert not shape_like(comment, set())
    assert not shape_comments(comment)


# Docstrings.

REST = '''def f(q, k, mask=None):
    """Attend.

    :param q: [n_batch, n_Q, d_feat], the queries
    :param torch.Tensor k: the keys,
        of shape (n_batch, n_K, d_feat)
    :param mask: None, or a list of (B, T)
    :return: [n_batch, n_Q, d_feat]
    """
    return g(q, k)
'''
GOOGLE = '''def f(q, k, mask=None):
    """Attend.

    Args:
        q (Tensor): queries of shape (B, L, D).
        k (torch.Tensor, optional): Keys, whose shape is `(B, S, D)`.
        mask: which keys to see.

    Returns:
        Tensor: the values [B, L, D].
    """
    return g(q, k)
'''
NUMPY = '''def f(q, k, mask=None):
    """Attend.

    Parameters
    ----------
    q : Tensor, shape (B, L, D)
        The queries.
    k : array_like
        The keys, with shape (B, S, D).

    Returns
    -------
    Tensor of shape (B, L, D)
    """
    return g(q, k)
'''
PLAIN = '''def f(q, k, mask=None):
    """q: [B, L, D]
    k: [B x S x D]
    returns nothing special
    """
    out = g(q, k)  # out: (B, L, D)
    return out
'''
RAN = [step("q", 1, *Q, how="input"), step("k", 1, *K, how="input")]


@pytest.mark.parametrize(
    ("text", "line", "name", "unread"),
    [(REST, 10, "return", [7]), (GOOGLE, 12, "return", []), (NUMPY, 15, "return", []), (PLAIN, 6, "out", [])],
    ids=["reST", "Google", "NumPy", "plain"],
)  # fmt: skip
def test_docstrings_are_read_in_every_style(text, line, name, unread):
    ran = [*RAN, step(name, line, *Q)]
    assert outcome(text, *ran) == (3, [], unread)
    other = [step("q", 1, *K, how="input"), *ran[1:]]
    wrong = outcome(text, *other)
    assert (wrong[0] < 3, len(wrong[1]) > 0) == (True, True)
    extra = outcome(text, step("q", 1, *SPLIT, how="input"), *ran[1:])
    assert len(extra[1]) == 1


def test_a_docstring_that_is_wrong_is_told_with_its_line():
    text = REST.replace("(n_batch, n_K, d_feat)", "(n_batch, d_feat, n_K)")
    (wrong,) = report(text, *RAN, step("return", 10, *Q)).wrong
    assert wrong.message == (
        "line 5: the docstring says k is (n_batch, d_feat, n_K), but it is [n_batch, n_K, d_feat] (4×9×30):"
        " axis 1 is n_K, not d_feat."
    )


@pytest.mark.parametrize(
    "said",
    [
        "(B, L, D) if batch_first else (L, B, D)", "a pair (h, c)", "probability in [0, 1]", "(int, optional): see [1]",
        "an index in [0, V)", "tuple of (hidden, cell)", "`(B, L, D)` where `(1, 1)` is special", "(L, *)", "the keys",
        "[batch size, sequence length]", "(see f(B, T))", "tensor with N = len(B) rows (all, of, them)", "default: (3, 3)",
    ],
)  # fmt: skip
def test_prose_in_a_docstring_is_never_wrong(said):
    text = f'def f(q):\n    """Do.\n\n    Args:\n        q: {said}\n    """\n    return g(q)\n'
    for dims in (Q, ("n_Q", "n_batch", "d_feat"), ("1", "n_Q", "d_feat")):
        assert outcome(text, step("q", 1, *dims, how="input"))[1] == []


def test_an_argument_of_size_1_may_be_broadcast():
    text = 'def f(mask):\n    """Do.\n\n    Args:\n        mask: [n_batch, n_Q, n_K]\n    """\n    return g(mask)\n'
    assert outcome(text, step("mask", 1, "n_batch", "1", "n_K", how="input")) == (1, [], [])
    assert outcome(text, step("mask", 1, "n_batch", "n_K", "n_Q", how="input")) == (0, [5], [])


def test_several_returned_values_are_told_by_name():
    text = '''def f(q):
    """Do.

    Returns:
        out: (B, L, D)
        weights: (B, H, L, W)
    """
    out = g(q)
    weights = h(q)
    return out, weights
'''
    steps = [step("out", 8, *Q), step("weights", 9, *SPLIT)]
    assert outcome(text, *steps) == (2, [], [])
    assert outcome(text, step("out", 8, *SPLIT), step("weights", 9, *SPLIT))[1] == [5]


def test_a_function_for_queries_and_keys_has_words_of_its_own():
    """`n_Q` is what it calls its second axis, whatever the caller calls it."""
    text = 'def split(x):\n    """x: (n_batch, n_Q, d)"""\n    y = f(x)  # (n_batch, n_Q, n_head, d)\n    return y\n'
    steps = []
    for axis in ("n_Q", "n_K"):
        steps += [
            step("x", 1, "n_batch", axis, "d_feat", how="input", depth=1),
            step("y", 3, "n_batch", axis, "n_head", "d_feat", depth=1),
        ]
    assert outcome(text, *steps) == (2, [], [])
    swapped = text.replace('"""x: (n_batch, n_Q, d)"""', '"""x: (n_Q, n_batch, d)"""')
    assert outcome(swapped, *steps)[1] == [2]


# jaxtyping.


def annotated(annotation: str, *dims: str, more: str = "") -> tuple:
    text = f"def f(q: {annotation}{more}):\n    return g(q)\n"
    return outcome(text, step("q", 1, *dims, how="input"))


@pytest.mark.parametrize(
    "annotation",
    [
        'Float[Tensor, "b n d"]', 'Float[torch.Tensor, "n_batch n_Q d_feat"]', 'jaxtyping.Float[Tensor, "b n d"]',
        'jt.Float32[Tensor, "b n d"]', "\"Float[Tensor, 'b n d']\"", 'Float["Tensor", "b n d"]', 'Float[Tensor, "*batch n d"]',
        'Float[Tensor, "... d"]', 'Float[Tensor, "_ n _d"]', 'Float[Tensor, "4 n 30"]', 'Float[Tensor, "b n d=30"]',
        'Float[Tensor, "b n d"] | None', 'Optional[Float[Tensor, "b n d"]]', 'Union[Int[Tensor, "b n"], Float[Tensor, "b n d"]]',
        'Shaped[Tensor, "#b #n d"]', 'BFloat16[Tensor, "b n 5*6"]', 'Float[Tensor, "*b"]', 'Float[Tensor, "b n *rest d"]',
    ],
)  # fmt: skip
def test_annotations_of_jaxtyping_are_read(annotation):
    assert annotated(annotation, *Q) == (1, [], [])


@pytest.mark.parametrize(
    "annotation",
    [
        'Float[Tensor, "b n"]', 'Float[Tensor, "b n n"]', 'Float[Tensor, "n_Q n_batch d"]', 'Float[Tensor, "b h n d"]', 'Float[Tensor, ""]',
        'Float[Tensor, "5 n d"]', "\"Float[Tensor, 'n_Q b d']\"", 'Float[Tensor, "b n d"] | None, k: Float[Tensor, "b n d"]',
        'Float[Tensor, "#b 1 d"]', 'Float[Tensor, "a b *rest c d"]', 'Float[Tensor, "b n 2*n_Q"]',
    ],
)  # fmt: skip
def test_annotations_that_are_wrong_are_found(annotation):
    text = f"def f(q: {annotation}):\n    return g(q)\n"
    steps = [step("q", 1, *Q, how="input"), step("k", 1, *K, how="input")]
    expected = [] if "2*n_Q" in annotation else [1]
    assert report(text, *steps).wrong[:1] == report(text, *steps).wrong
    assert [
        wrong.line for wrong in report(text, *steps).wrong
    ] == expected  # n_Q is local, and not bound


def test_words_of_annotations_are_those_of_the_function():
    """Annotations that agree with each other are true, whatever the user calls the axes."""
    text = 'def f(q: Float[Tensor, "b n_K d"], k: Float[Tensor, "b n d"]) -> Float[Tensor, "b n_K d"]:\n    return g(q, k)\n'
    ran = [step("q", 1, *Q, how="input"), step("k", 1, *K, how="input"), step("return", 2, *Q)]
    assert outcome(text, *ran) == (3, [], [])
    assert outcome(text, *ran[:2], step("return", 2, *K))[1] == [1]


def test_several_axes_with_one_name_are_the_same_each_time():
    text = 'def f(q: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b d"]:\n    return g(q)\n'
    ran = step("q", 1, *SPLIT, how="input")
    assert outcome(text, ran, step("return", 2, "n_batch", "n_head", "d_feat/n_head")) == (2, [], [])
    (wrong,) = report(text, ran, step("return", 2, "n_head", "n_batch", "d_feat/n_head")).wrong
    assert wrong.message.endswith("*b is n_head n_batch, but n_batch n_head on line 1.")


def test_results_and_variables_are_annotated_too():
    text = (
        "def f(x) -> tuple[Float[Tensor, 'b n d'], Float[Tensor, 'b h n e'] | None]:\n"
        "    y: Float[Tensor, 'b n d'] = g(x)\n"
        "    z: Float[Tensor, '{size} n'] = g(x)\n"
        "    return y, h(x)\n"
    )
    ran = [step("y", 2, *Q), step("z", 3, "n_batch", "n_Q"), step("return[1]", 4, *SPLIT)]
    assert outcome(text, *ran) == (3, [], [3])
    assert outcome(text, step("y", 2, *SPLIT), *ran[1:])[1] == [1, 2]


# einops.


@pytest.mark.parametrize(
    "text",
    [
        "y = rearrange(x, 'b n (h d) -> b h n d', h=5)", "y = einops.rearrange(x, '... (h d) -> ... h d', h=5)",
        "y, z = map(lambda t: rearrange(t, 'b n (h d) -> b h n d', h=5), (x, w))",
        "y, z = (rearrange(t, 'b n (h d) -> b h n d', h=5) for t in (x, w))", "y = repeat(x, 'b n (n_Q d) -> b n_Q n d', n_Q=5)",
    ],
)  # fmt: skip
def test_patterns_use_words_of_their_own(text):
    """A pattern may call the heads `n_Q`, if nothing in it is called so by its user."""
    ran = [step("x", 1, *K), step("y", 2, "n_batch", "n_head", "n_K", "d_feat/n_head")]
    if "..." in text:
        ran[1] = step("y", 2, "n_batch", "n_K", "n_head", "d_feat/n_head")
    true, wrong, unread = outcome(f"x = f()\n{text}\n", *ran)
    assert (true, wrong, unread) == (1, [], [])


def test_a_pattern_that_confuses_two_axes_is_found():
    text = "x = f()\ny = rearrange(x, 'n_Q n_batch d -> n_batch n_Q d')\n"
    right = [step("x", 1, "n_Q", "n_batch", "d_feat"), step("y", 2, *Q)]
    assert outcome(text, *right) == (1, [], [])
    (wrong,) = report(text, step("x", 1, *Q), step("y", 2, "n_Q", "n_batch", "d_feat")).wrong
    assert wrong.message == (
        "line 2: the pattern says x is 'n_Q n_batch d', but it is [n_batch, n_Q, d_feat] (4×7×30):"
        " axis 0 is n_batch, not n_Q."
    )


def test_a_pattern_is_held_against_the_operand_that_it_got():
    text = "x = f()\nx = g(x)\ny = rearrange(x, 'n_Q n_batch d -> n_batch n_Q d')\nx = h(y)\n"
    steps = [
        step("x", 1, *Q),
        step("x", 2, "n_Q", "n_batch", "d_feat"),
        step("y", 3, *Q),
        step("x", 4, *Q),
    ]
    assert outcome(text, *steps) == (1, [], [])


# The whole way.


def test_many_statements_about_code_that_did_not_run_are_told_in_one_line():
    lines = "".join(f"y{i} = f(x)  # (B, T)\n" for i in range(30))
    (notice,) = report(lines).notices
    assert notice.startswith("30 shapes are stated where no tensor was created: lines 1, 2, 3, 4")
    assert notice.endswith("19, 20, …")
    assert len(report("y = f(x)  # (B, T)\n").notices) == 1
