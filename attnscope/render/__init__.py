"""Views: results as tables, records, values and files. They know nothing of torch or models.

`columns` says what a result's columns are; `table`, `records` print them for people and for
programs. `values` prints one tensor, `numbers` all of a trace; `source` prints the code that ran.
`scaling` and `example` show what is no single trace; `tensor_file` writes tensors.

Attention maps: `heatmap` shows one in the terminal (`row` one query's, `patches` a picture's),
`overview` all, `strongest` lists keys, `maps` has headings and records, `plot` draws with matplotlib
(`figures`), `page` writes HTML. `colours`, `axes`, `pooling` and `tokens` are what these share;
`circuits` shows singular values; `whole_file` lets a file appear whole or not at all.
"""
