"""The textbook's shape comments are true, according to attnscope's own check."""

import re
from pathlib import Path

import pytest

import attnscope as package

FOLDER = Path(package.__file__).parent / "attention"
SPLIT = """
    --input n_head=4 --input n_kv_head=2 --input rope_theta=10000.0
    --where d_feat=n_head*d_K --where d_k=n_kv_head*d_K --where d_v=n_kv_head*d_V
    --input Q=n_batch:2,n_Q:3,d_feat:40 --input K=n_batch,n_new:5,d_k --input V=n_batch,n_new,d_v:12
    --input mask=n_Q,n_K:12@bool
    --input K_past=n_batch,n_kv_head,n_past:7,d_K --input V_past=n_batch,n_kv_head,n_past,d_V
"""
RUNS = {
    "mha:MultiHeadAttention": """
        --init d_feat=30 --init n_head=4 --init n_kv_head=2 --init d_head=10 --init d_V=6 --init d_context=14
        --init rope_theta=10000.0
        --input Q=n_batch:2,n_Q:3,d_feat --input K=n_batch,n_new:5,d_context
        --input V=n_batch,n_new,d_context --input mask=n_Q,n_K:12@bool
        --input K_past=n_batch,n_kv_head,n_past:7,d_head --input V_past=n_batch,n_kv_head,n_past,d_V
    """,
    "sdpa:sdpa": SPLIT,
    "one_query:sdpa_query": "--input query=1" + SPLIT,
    "columns:sdpa_columns": """
        --input Q=n_batch:2,n_head:4,d_K:10,n_Q:3 --input K=n_batch,n_kv_head:2,d_K,n_new:5
        --input V=n_batch,n_kv_head,d_V:6,n_new --input mask=n_K:12,n_Q@bool
        --input K_past=n_batch,n_kv_head,d_K,n_past:7 --input V_past=n_batch,n_kv_head,d_V,n_past
    """,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("target", RUNS)
def test_every_shape_comment_of_the_textbook_is_true(target, attnscope):
    ran = attnscope("trace", f"attnscope.attention.{target}", "--check", *RUNS[target].split())
    file = FOLDER / f"{target.partition(':')[0]}.py"
    comments = re.findall(r"# (?:\w+: |cos, sin: )?\[", file.read_text(encoding="utf-8"))
    said = int(re.search(r"(\d+) true", ran.out)[1])
    assert (ran.exit_status, said >= len(comments) >= 10) == (0, True), ran.out + ran.err


@pytest.mark.sweep
def test_a_comment_that_is_not_true_is_found(attnscope, tmp_path):
    text = (FOLDER / "columns.py").read_text(encoding="utf-8")
    wrong = text.replace("# [n_batch, n_head, n_K, n_Q]", "# [n_batch, n_head, n_Q, n_K]", 1)
    assert wrong != text
    file = tmp_path / "columns_with_a_lie.py"
    file.write_text(wrong, encoding="utf-8")
    ran = attnscope("trace", f"{file}:sdpa_columns", "--check", *RUNS["columns:sdpa_columns"].split())
    line = wrong[: wrong.index("# [n_batch, n_head, n_Q, n_K]")].count("\n") + 1
    assert ran.exit_status == 1
    assert f"line {line}: the comment says scores is [n_batch, n_head, n_Q, n_K]" in ran.out
