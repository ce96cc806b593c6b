"""Operators by key without windows: a result is valid until it changes, and is then retracted."""
