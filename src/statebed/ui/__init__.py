"""The dashboard: state and its history in a browser. Read-only, without a build step, works offline."""

from statebed.ui.security import is_loopback
from statebed.ui.server import dashboard, serve

__all__ = ["dashboard", "is_loopback", "serve"]
