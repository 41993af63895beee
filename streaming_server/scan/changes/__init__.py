"""Reading the changelog: live changes, net changes, and the full table followed by its changes."""
