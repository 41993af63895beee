"""Calls to the server: channel, retries, deadlines and leases."""
