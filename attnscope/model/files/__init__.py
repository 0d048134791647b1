"""Read checkpoints on disk or on the hub without torch: files, tensors, layouts, one head's weights."""
