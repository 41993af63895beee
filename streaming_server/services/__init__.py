"""The gRPC services, one file each. They translate messages, call the engine and map errors; they contain no logic."""
