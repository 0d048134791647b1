"""The command line: one file a command. Everything heavy is imported when a command needs it."""
