"""Time-keyed tables: rows with a time, appended in batches, read and deleted by time range."""
