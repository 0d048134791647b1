"""Load the code to trace, and construct its arguments."""
