"""The demo: a Nexmark event generator and a job over it, on local Spark."""
