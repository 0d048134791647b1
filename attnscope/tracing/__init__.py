"""Tracing: run a piece of code, and record every named tensor in it.

`inspect`, `calls` and `watch` hold the public functions. In `instrument`, `rewrite` puts recording
calls into source, `code_swap` swaps that code into existing functions, `recorder` records
their tensors while they run, `cost` computes the cost of an operator, and `session` combines these. The
textbook's traces get the names of their axes from `attnscope.contracts`; for all other code, `axes`
infers them. `diagnose` finds likely mistakes and the causes of failures; `target` loads a user's code
and makes its inputs; `comments` writes and checks shape comments.
"""
