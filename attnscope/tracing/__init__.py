"""Tracing: run a user's code, and record every named tensor in it.

`inspect` runs code of its own accord, `watch` a program, `live_calls` what a notebook runs; `comments`
writes and checks shape comments. How tensors are recorded and named is in `attnscope.observe`.
"""
