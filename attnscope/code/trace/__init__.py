"""Tracing: run a user's code, and record every named tensor in it.

`inspect` runs a function or a module, `watch` a program, and `live_calls` records what a notebook runs.
`comments` writes and checks shape comments. `attnscope.observe` records tensors and names their axes.
"""
