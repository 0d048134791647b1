"""Tracing: run a piece of code, and get every named tensor in it.

`inspect`, `calls` and `watch` hold the public functions. In `instrument`, `rewrite` puts recording
calls into source, `code_swap` gives the code to the functions that are there, `recorder` listens to
them while they run, `cost` says what an operator costs, and `session` holds these together. The
textbook's traces get their axes' names from `attnscope.contracts`; for all other code `axes` finds them
out. `diagnose` says what looks wrong in it, and why it failed; `target` loads a user's code and makes
its inputs; `comments` writes and checks shape comments.
"""
