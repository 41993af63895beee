"""What a table is, as the server describes it, and how a client reaches it."""
