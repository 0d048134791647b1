"""What a model reads while it writes: `attnscope.answer`."""
