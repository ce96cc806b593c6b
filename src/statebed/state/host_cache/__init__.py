"""What all processes of one user on a host share: local copies of data files, in a form that is mapped."""

from statebed.state.host_cache.cache import CacheCounts, HostCache

__all__ = ["CacheCounts", "HostCache"]
