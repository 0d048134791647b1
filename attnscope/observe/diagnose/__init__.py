"""Find what looks wrong in a trace, and explain why code failed."""
