"""Load a model, tokenize its input, and hook its attention."""
