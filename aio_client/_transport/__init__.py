"""Calls to the server: channel, retries, deadlines and leases."""

import os

# gRPC writes lines of its own to standard error, about failures that callers get as errors. It reads this variable
# once, when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
