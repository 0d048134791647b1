"""Two implementations, code or a reference, with the same inputs and weights."""
