"""Fraud rules from a control topic over a stream of payments."""
