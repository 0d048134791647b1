"""Real checkpoints: finding them, and reading one head's weights without loading the model.

`checkpoint` finds the files, `weights` reads byte ranges from them, `layouts` knows where a
family keeps its matrices, `head` puts these together, and `verify` compares with
transformers.
"""
