"""Casts: every conversion from one type to another, explicit or implied."""

from statebed.expressions.casts.conversions import as_decimal, convert, in_working_type

__all__ = ["as_decimal", "convert", "in_working_type"]
