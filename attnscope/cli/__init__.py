"""The command line: one file for each command. Heavy imports happen when a command needs them."""
