"""Presentation of values in commands, pages and notebooks: units and colours."""
