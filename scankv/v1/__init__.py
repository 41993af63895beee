"""The wire protocol: modules generated from `protos/scankv/v1/*.proto`, for client and server."""
