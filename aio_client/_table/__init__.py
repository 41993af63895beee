"""The description of a table, and the state that its methods share."""
