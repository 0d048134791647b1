"""What a run of the textbook takes in: sizes, tensors from files, masks, projections."""
