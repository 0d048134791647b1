"""The proof: what a run of the textbook computed, against references that share no code with it.

`run` brings a trace to one form, `naive` computes it again with loops, `references` asks
PyTorch, `rounding` says how far rounding alone may part them, `checks` compares.
"""

from attnscope.textbook.reference.checks import verify

__all__ = ["verify"]
