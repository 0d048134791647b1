"""The textbook's attention as a question: its inputs, its run, its proof."""
