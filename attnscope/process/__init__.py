"""The process that attnscope runs in: its signals, its streams, its memory, and its neighbours."""
