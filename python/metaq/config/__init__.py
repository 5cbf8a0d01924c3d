"""What can be set, where it may be set, and what follows from it.

options.py   every option: name, kind, default, help
kinds.py     how text becomes a value
sources.py   flags, --set, environment, files; who wins
upstream.py  broker.conf of Apache RocketMQ
derive.py    the settings that the roles start with, and the limits that must hold between them
"""

from metaq.config.sources import Config, Setting, load

__all__ = ["Config", "Setting", "load"]
