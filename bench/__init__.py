"""Benchmarks. Each `python -m bench NAME` checks its own answers, prints a table, and takes --quick, --json, --check."""
