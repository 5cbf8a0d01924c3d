"""The old path of `metaq.protocol.properties`, from which the data plane reads SYSTEM_NAMES."""

from metaq.protocol.properties import SYSTEM_NAMES

__all__ = ["SYSTEM_NAMES"]
