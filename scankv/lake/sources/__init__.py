"""The rows of tables and files in open formats that any program has written."""
