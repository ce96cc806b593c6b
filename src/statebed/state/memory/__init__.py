"""One budget of memory for all tables of a process: who holds what, and what leaves when there is too much."""
