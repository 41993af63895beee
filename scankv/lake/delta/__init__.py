"""Delta Lake: tables as Parquet files with a log of JSON files."""
