"""What moves when something changes, where that begins, and what may move."""
