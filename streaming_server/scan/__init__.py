"""Reading: cursors and sources of rows and changes, and what a stream of them carries."""
