"""Comparison of two attentions: where they part, and why."""
