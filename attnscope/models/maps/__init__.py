"""Attention maps: collected while a model runs, what is shown of them, and their files."""
