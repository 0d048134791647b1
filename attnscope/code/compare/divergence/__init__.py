"""Both sides arranged alike: which tensors differ, and which of them first."""
