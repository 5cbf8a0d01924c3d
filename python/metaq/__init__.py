"""MetaQ: a message queue that unmodified RocketMQ clients talk to."""

from metaq.errors import MetaqError

__all__ = ["MetaqError", "__version__"]

__version__ = "0.1.0"
