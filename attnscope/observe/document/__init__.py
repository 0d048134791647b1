"""What is shown of a trace: its columns, its rows in HTML, and what stands above and below them."""
