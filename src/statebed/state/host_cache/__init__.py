"""Copies of data files on local disk that all processes of one user on a host share, in a form that can be mapped."""

from statebed.state.host_cache.cache import CacheCounts, HostCache

__all__ = ["CacheCounts", "HostCache"]
