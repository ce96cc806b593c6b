"""Operators by key without windows: results stand until they change and are then retracted."""
