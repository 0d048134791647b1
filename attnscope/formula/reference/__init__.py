"""The proof: a run of the textbook is compared with references that share no code with it.

`run` brings a trace to one common form, `naive` recomputes it with loops, `references` with
PyTorch, `rounding` bounds the differences that rounding explains, and `checks` compares.
"""

from attnscope.formula.reference.checks import verify

__all__ = ["verify"]
