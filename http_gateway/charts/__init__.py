"""Charts of the last 15 minutes: who samples the server, what is kept, and how it is drawn."""
