"""A head's weights, read from a checkpoint."""
