"""Every way to listen to attention that runs, and what each tensor in it is."""
