"""The inputs of a run of the textbook: sizes, tensors from files, masks, projections."""
