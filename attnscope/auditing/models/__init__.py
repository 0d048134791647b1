"""The properties of transformers' models."""
