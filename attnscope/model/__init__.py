"""Real checkpoints: their files, families and runs, and a room for each question about them."""
