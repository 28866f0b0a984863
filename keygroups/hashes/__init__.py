"""One module a hash, each with the same two functions: `hash_key` for a key, `hash_columns` for many."""
