"""Who may do what: tokens, roles, and the audit log. Knows nothing of gRPC."""
