"""A worked example of attention with its numbers, written out."""
