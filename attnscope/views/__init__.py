"""Views: results as tables, records, values and files. They know nothing of torch or models.

`columns` says what a result's columns are; `table`, `records` print them for people and for
programs; `values` prints one tensor; `tensor_file` writes many.
"""
