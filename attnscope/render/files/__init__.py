"""Results as files: tensors, figures, pages and records."""
