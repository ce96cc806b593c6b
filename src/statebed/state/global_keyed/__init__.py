"""Global keyed tables: small and dict-like, read by every subtask, each key written by its owner."""
