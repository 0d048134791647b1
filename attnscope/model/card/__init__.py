"""What a model's attention costs, before the model is loaded: memory, cache and work."""
