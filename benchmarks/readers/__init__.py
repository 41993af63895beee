"""The three ways to read T4 that are compared, each in a process of its own."""
