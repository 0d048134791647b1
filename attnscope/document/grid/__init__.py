"""Draw numbers of pairs of tokens as a grid: colours, axes, pooling, and the drawings of all rooms."""
