"""Load a model, tokenize what it reads, and hook its attention."""
