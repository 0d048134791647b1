"""A real module, annotated from its trace, and its comments checked."""

import importlib.util
from dataclasses import replace

import attnscope
from attnscope import trace_call
from attnscope.code.trace.comments.annotate import annotate_file, diff
from attnscope.code.trace.comments.check import check_source

SMALL = '''import torch


class Attention(torch.nn.Module):
    """Attention as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.W = torch.nn.Linear(8, 24)

    def forward(self, x, heads=2):
        B, T, C = x.size()  # batch size, sequence length, width (d_feat)
        q, k, v = self.W(x).split(C, dim=2)
        q, k, v = (
            self.split(each, heads) for each in (q, k, v)
        )
        att = q @ k.mT  # (B, nh, T, hs) x (B, nh, hs, T) -> (B, nh, T, T)
        y = (att.softmax(-1) @ v)  # (B, nh, T, hs)
        return y.transpose(1, 2).reshape(B, T, C)

    def split(self, each, heads):
        # each: (B, T, C)
        B, T, C = each.shape
        return each.view(B, T, heads, C // heads).transpose(1, 2)
'''
DIMS = {
    (3, 5, 8): ("B", "T", "C"), (3, 2, 5, 4): ("B", "heads", "T", "C/heads"), (3, 2, 5, 5): ("B", "heads", "T", "T"),
}  # fmt: skip


def test_a_real_module_is_annotated_from_its_trace_and_its_comments_are_checked(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(SMALL, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("small", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trace = trace_call(module.Attention(), module.torch.ones(3, 5, 8))
    steps = [replace(each, dims=DIMS[each.shape]) for each in trace.steps]
    old, new = annotate_file(path, steps)
    added = [
        line[1:].strip() for line in diff(old, new, "small.py").splitlines() if line.startswith("+ ")
    ]
    assert added == [
        "q, k, v = self.W(x).split(C, dim=2)  # q: [B, T, C], k: [B, T, C], v: [B, T, C]",
        ")  # q: [B, heads, T, C/heads], k: [B, heads, T, C/heads], v: [B, heads, T, C/heads]",
        "att = q @ k.mT  # [B, heads, T, T]",
        "y = (att.softmax(-1) @ v)  # [B, heads, T, C/heads]",
        "return y.transpose(1, 2).reshape(B, T, C)  # [B, T, C]",
        "return each.view(B, T, heads, C // heads).transpose(1, 2)  # [B, heads, T, C/heads]",
    ]
    sizes = {"B": 3, "T": 5, "C": 8, "heads": 2}
    for text, true in ((old, 3), (new, 11)):
        result = check_source(text.decode(), steps, sizes=sizes)
        assert (result.true, result.wrong, result.unknown) == (true, [], [])
    wrong = SMALL.replace("# (B, nh, T, hs)\n", "# (B, T, nh, hs)\n")
    assert [wrong.message for wrong in check_source(wrong, steps, sizes=sizes).wrong] == [
        "line 18: the comment says y is (B, T, nh, hs), but it is [B, heads, T, C/heads] (3×2×5×4):"
        " axis 1 is heads, not T."
    ]
    assert check_source(SMALL, [], sizes=sizes).true == 0
    assert [unknown.name for unknown in check_source(SMALL, [], sizes=sizes).unknown] == [
        "att",
        "y",
        "each",
    ]


def test_the_report_names_the_lines_that_it_could_not_read(module_of):
    module = module_of("""
        def attend(q, k):
            # The result is (B, L, S) or so.
            scores = q @ k.mT  # (B x L x S)
            weights = scores.softmax(-1)  # shape as above (B, L, S)
            return weights
        """)
    trace = attnscope.inspect(f"{module.__file__}:attend", inputs={"q": "b:2,n:3,d:4", "k": "b,m:5,d"})
    assert attnscope.check_comments(trace).unread == [3, 5]
    assert trace.checks[-1].note == "1 true, 2 not read (lines 3, 5)"
