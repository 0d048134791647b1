"""Attention maps: captured, pooled, compared and shown."""
