"""One module per hash, each with the same two functions: `hash_key` for one key, `hash_columns` for many."""
