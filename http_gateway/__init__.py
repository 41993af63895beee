"""ScanKV over HTTP: a client of the gRPC server that answers browsers, notebooks and dashboards.

Each request carries the token of its caller, which is sent on with every call that the request needs. So who may read
what, the limits of callers, the audit log, admission and the errors are those of the gRPC server. The gateway runs in a
process of its own, so JSON and slow browsers take nothing from the server.
"""
