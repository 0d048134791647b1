"""Results as JSON, CSV and Markdown."""
