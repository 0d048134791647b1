"""Metrics of every head of a model, on a text or a corpus, and the grid of heads that shows them."""
