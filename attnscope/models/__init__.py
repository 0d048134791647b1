"""Real models: loaded, run on an input, and observed through a hook of their attention.

`maps` collects the weights of heads, `heads` has their metrics, and `masks` the keys that queries see.
"""
