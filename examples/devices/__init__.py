"""Deduplication of readings from a million devices, in bounded memory."""
