"""Computation of the textbook's attention: its inputs, its run, its proof."""
