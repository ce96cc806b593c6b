"""Fixtures that tests of several folders use; each is made when it is first asked for."""

pytest_plugins = ("s3.server",)
