"""Maintenance of snapshots: compaction, retention, verification, rewrites, edits, and first snapshots from rows."""
