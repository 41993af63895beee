"""The clients that the comparison measures. Each runs in its own process, and imports its library on use."""
