"""What is shown of a result, as blocks, and one renderer of blocks for each format.

A result builds its document; the renderers know blocks and no result.
"""
