"""The textbook: attention written as its papers write it, in plain torch.

This code knows nothing about tracing: `attnscope sdpa` and `attnscope mha` show it exactly as it
ran.

Notation, the same everywhere:
    n_batch, n_Q, n_K   sequences, queries, keys (every key has one value)
    n_head              heads
    d_feat, d_head      the widths of the model and of a head: usually d_feat = n_head · d_head
    d_K, d_V            widths of a key (and of a query), and of a value
"""
