"""Which token of a prompt belongs to which part: roles, documents, tools, and what the user marks."""
