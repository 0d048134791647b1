"""The user's own code: loading it, pairing it with another, and the rooms that trace and compare it."""
