"""Views of results: tables, records, figures, pages and files. They depend on neither torch nor models.

The modules here are shared by the views: `columns` defines the columns of results, `heading` the lines
above them, `values` and `numbers` format tensors, `pooling`, `axes`, `tokens` and `colours` serve the
attention maps. Each sub-package renders to one medium: `terminal`, `records` (JSON, CSV, Markdown),
`figures` (matplotlib), `page` (HTML), `files`.
"""
