"""Pinned snapshots on disk: checkpoints, manifests and leases."""
