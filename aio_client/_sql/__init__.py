"""SQL over live tables: DuckDB runs a query in the process of the client, and reads the tables as datasets."""
