"""Arrow arrays as numpy sees them: hashing, order, grouping, columns written in place, compiled loops."""
