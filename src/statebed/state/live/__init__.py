"""Live state of one table of one subtask: its files, and the tombstones that hide rows in them."""
