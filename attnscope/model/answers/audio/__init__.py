"""Recordings that a model writes down: when the encoder's frames are, and which heads follow them."""
