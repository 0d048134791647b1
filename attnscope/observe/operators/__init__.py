"""What one side computes: a tape of its call, and which tensors are Q, K, V, scores and attention."""
