"""What goes wrong with a mirror."""

from __future__ import annotations

from metaq.errors import MetaqError


class MirrorError(MetaqError):
    """Something keeps a mirror from being as its source is."""
