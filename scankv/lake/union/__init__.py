"""Union reads: the rows of a published table, with what has changed since from the server, as of one instant."""
