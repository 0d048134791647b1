"""Shape comments in a user's source file: written from what ran, and checked against it.

`annotate` writes `# [n_batch, n_head, n_Q, d_head]` at the end of each line that binds a tensor,
and changes nothing else. `check` finds the comments that say something else than what ran.
Both read code through `places`, comments through `parse`, and axes through `expressions`.
"""
