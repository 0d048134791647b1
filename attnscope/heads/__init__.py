"""Measure every head of a model on a text or a corpus."""
