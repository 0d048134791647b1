"""Results as PNG, SVG and PDF, drawn with matplotlib."""
