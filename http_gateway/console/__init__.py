"""The console: what operators see of a server in a browser. Pages are made here; browsers run no script."""
