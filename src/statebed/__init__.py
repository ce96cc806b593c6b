"""statebed."""
