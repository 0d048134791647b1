"""Real checkpoints: one head's weights, without loading the model; what heads look at, by running it.

`checkpoint` finds the files. For weights, `weights` reads byte ranges from them, `layouts` knows where
a family keeps its matrices, `head` puts these together, `circuits` looks at their products, and
`verify` compares with transformers. For attention, `loading` loads the model, `reading` makes its
inputs of texts and pictures, `writing` those of a decoder; `observe` sees what is handed to attention,
`maps` runs the model, `gallery` gathers its maps, by `stacks`; `steps` makes a trace, and `compare`
compares with the model's own. `ranges` tells which layers and heads there are.
"""
