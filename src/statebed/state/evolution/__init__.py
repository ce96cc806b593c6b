"""Changes of table definitions while the state is kept: the allowed changes, and reading old rows in the new schema."""
