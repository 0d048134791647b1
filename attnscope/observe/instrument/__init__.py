"""Record what code computes while it runs: rewritten source, swapped code, a recorder."""
