"""What a server reports about itself and its tables."""
