"""Masks: of a model's layers, of the textbook, and of functions in a user's file."""
