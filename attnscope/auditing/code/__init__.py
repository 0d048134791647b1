"""Code to audit: what each of its inputs is, how it is called, and which positions influence which."""
