"""Text that an engine wrote: its tokens, and their log-probabilities there."""
