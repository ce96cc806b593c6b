"""Clickstream sessions in an Iceberg table."""
