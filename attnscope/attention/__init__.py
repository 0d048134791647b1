"""The textbook: attention written as its papers write it, in plain torch.

Nothing here knows that it may be traced. What `attnscope sdpa` and `attnscope mha` show
is this code, as it ran.

Notation, everywhere the same:
    n_batch, n_Q, n_K   sequences, queries, keys (every key has one value)
    n_head              heads
    d_feat, d_head      the model's width and a head's: d_feat = n_head · d_head
    d_K, d_V            widths of a key (and of a query), and of a value
"""
