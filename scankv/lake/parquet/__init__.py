"""Plain Parquet files, with a manifest for each version."""
