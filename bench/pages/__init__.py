"""Pages of the documentation that are written from result files: `make bench-docs`."""
