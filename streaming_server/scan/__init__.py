"""Reading: cursors and sources of rows and changes, and the messages of their streams."""
