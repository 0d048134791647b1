"""What changed in the weights between two checkpoints."""
