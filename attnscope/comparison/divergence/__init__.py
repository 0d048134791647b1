"""Both sides arranged alike: which tensors differ, and where they part."""
