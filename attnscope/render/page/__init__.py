"""Attention as one HTML file that people mail to each other: it needs no server, no network, nothing.

`packing` makes the weights small, `heads` has the metrics; `page` puts weights, tokens, metrics,
style and script into one text. In the browser, `weights.js` unpacks, `drawing.js` paints a head,
`overview.js` shows all heads at once, `metrics.js` tells their metrics, and `page.js` listens.
"""
