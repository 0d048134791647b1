"""Real models: the weights of a head, attention maps, and metrics of heads.

`head_weights` reads one head of a checkpoint, and `verify_weights` compares it with a run of the model.
`running` loads a model, tokenizes its input, and hooks its attention; `maps` collects attention maps;
`heads` measures heads.
"""
