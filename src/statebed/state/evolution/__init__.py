"""Definitions of tables that change while their state stays: what may change, and old rows read as new ones."""
