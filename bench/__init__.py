"""Benchmarks. Each `python -m bench NAME` checks its own answers and prints a table (--quick, --json, --check)."""
