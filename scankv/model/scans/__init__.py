"""What a scan asks for."""
