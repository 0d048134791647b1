"""What attention is run on: sizes that become drawn tensors and modules."""
