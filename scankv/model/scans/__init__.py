"""The specification of a scan."""
