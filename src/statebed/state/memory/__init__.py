"""One memory budget for all tables of a process: accounting by owner, and eviction when it is exceeded."""
