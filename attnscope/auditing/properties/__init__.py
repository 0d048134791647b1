"""The properties of models: in each file what to run, and what must be equal."""
