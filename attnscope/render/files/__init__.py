"""Results as files: tensors, pictures, pages and records."""
