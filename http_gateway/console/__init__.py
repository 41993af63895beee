"""The console: what operators see of a server in a browser. Pages are made here; only the live page has a script."""
