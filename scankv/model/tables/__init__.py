"""Table definitions: schema, options, indexes and merge engine."""
