"""Views of the results that have no document yet. They depend on neither torch nor models.

The modules here are shared by the views: `columns` defines the columns of results, `heading` the lines
above them, `values` and `numbers` format tensors. Each sub-package renders to one medium: `terminal`,
`records` (JSON, CSV, Markdown), `notebook` (HTML), `files`.
"""
