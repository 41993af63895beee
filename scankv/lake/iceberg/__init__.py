"""Apache Iceberg: tables as Parquet files with metadata, whose current version a catalog names."""
