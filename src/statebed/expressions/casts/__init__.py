"""Conversions between types, explicit and implicit."""

from statebed.expressions.casts.conversions import as_decimal, convert, in_working_type

__all__ = ["as_decimal", "convert", "in_working_type"]
