"""Operators over tumbling, sliding, cumulative and session windows in event time."""
