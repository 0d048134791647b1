"""Collect attention maps while a model runs: whole, or pooled block by block."""
