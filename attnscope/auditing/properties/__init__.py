"""One property of a model in each file: what to run, and what must be equal."""
