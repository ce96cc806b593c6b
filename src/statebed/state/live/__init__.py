"""What is live in one table of one subtask: files, and the tombstones that hide rows of them."""
