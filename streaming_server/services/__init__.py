"""The gRPC services: one file each; they translate, call the engine and map errors, and hold no logic."""
