"""Names of axes, inferred by running the code with other sizes."""
