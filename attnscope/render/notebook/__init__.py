"""Results as HTML for notebooks: Jupyter, VS Code, Colab, marimo.

The HTML needs no script, except for attention maps: they are the interactive page in a sandboxed frame.
Rows open by `<details>`. Each output carries its own style, whose rules apply to nothing else.
"""
