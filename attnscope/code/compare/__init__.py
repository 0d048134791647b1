"""Comparison of two attentions: which tensor differs first, and why."""
