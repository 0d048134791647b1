"""Results as plain data: names, numbers and strings.

This is the only interface between the code that produces results and the code that renders them.
Tensors are included (`Step.tensor`, `WeightSlice.array`) if the caller asked to keep them.
"""
