"""Real models: what one head's weights are, what heads look at, and how they measure.

`head_weights` reads one head of a checkpoint, and `verify_weights` compares it with the model at work.
`running` loads a model, tokenizes what it reads, and hooks its attention; `maps` collects what heads
look at; `heads` measures them.
"""
