"""Pictures and videos in a prompt: which tokens stand for them, and which pixels each token covers.

`read` builds the prompt. Each family of models has its geometry in the file of its idea: `one_grid`,
`llava_next`, `own_ratio`, `tiles`; `supported` says which family is where.
"""
