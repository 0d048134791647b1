"""Measure how scaling the scores changes the attention, and show it."""
