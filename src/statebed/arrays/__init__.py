"""Arrow arrays in numpy: hashing, order, grouping, columns written in place, compiled loops."""
