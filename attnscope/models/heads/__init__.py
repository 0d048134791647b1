"""Metrics of a model's heads, and what is shown of them."""
