"""Declarations of the commands: arguments, options and help. Each imports its implementation when it runs."""
