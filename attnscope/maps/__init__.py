"""Collect the attention maps that a user wants to see: whole, or pooled block by block."""
