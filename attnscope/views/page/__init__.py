"""Attention as one HTML file that people mail to each other: it needs no server, no network, nothing.

`packing` makes the weights small; `page` puts weights, tokens, style and script into one text. In the
browser, `weights.js` unpacks, `drawing.js` paints, and `page.js` listens.
"""
