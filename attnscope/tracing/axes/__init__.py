"""Name the axes of tensors: run the code in other sizes and solve for what they are called."""
