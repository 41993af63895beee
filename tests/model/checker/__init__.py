"""One checker over all pairs of features: random steps of a real server, and a model of what it must answer."""
