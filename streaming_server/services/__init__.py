"""The gRPC services, one module each. They translate messages, call the engine and map errors; they have no logic."""
