"""A feature store whose online copy follows the change feed of a job's state."""
