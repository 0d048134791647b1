"""Pictures and videos in a prompt: which tokens stand for them, and which pixels each token covers.

`read` builds the prompt. `grids` and `tiles` have the geometry of each family of models, and `families`
says which family is where.
"""
