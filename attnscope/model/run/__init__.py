"""Real models: loaded, run on an input, and observed through a hook of their attention."""
