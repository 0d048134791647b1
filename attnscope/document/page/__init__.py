"""Attention as one self-contained HTML file, which needs neither a server nor a network.

`packing` compresses the weights, `heads` prepares the metrics, and `page` combines weights, tokens,
metrics, style and script. In the browser, `weights.js` unpacks the weights, `drawing.js` draws a head,
`overview.js` all heads, `metrics.js` shows their metrics, and `page.js` handles events.
"""
