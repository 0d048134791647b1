"""What attnscope finds out, as plain data: names, numbers and strings.

Everything that makes results and everything that shows them meets here, and nowhere else.
Tensors may ride along (`Step.tensor`, `WeightSlice.array`) where a caller asked to keep them.
"""
