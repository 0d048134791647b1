"""What is compared: code, or a reference, with the same inputs and weights."""
