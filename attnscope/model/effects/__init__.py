"""What each head of a model does to its prediction: its heads are removed, exchanged, or added up."""
