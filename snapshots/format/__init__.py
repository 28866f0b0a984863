"""The storage format: manifests, and state and elements as Arrow data in Parquet files."""
