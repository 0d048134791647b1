"""Views: results as tables, records, values and files. They know nothing of torch or models.

`columns` says what a result's columns are; `table`, `records` print them for people and for
programs. `values` prints one tensor, `numbers` all of a trace; `source` prints the code that ran.
`scaling` and `example` show what is no single trace; `tensor_file` writes tensors.
"""
