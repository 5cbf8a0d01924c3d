"""Configuration: every setting, the sources that it is read from, and the values that follow from it.

options.py   the table of options: name, kind, default, help; with broker_options.py, store_options.py
option.py    one option, and the sections
kinds.py     how a text becomes a value
sources.py   flags, --set, environment and files, and which of them wins
upstream.py  reads broker.conf of Apache RocketMQ
derive.py    computes the settings of the roles, and checks limits between options

The command line and `metaq.testing` load a Config and derive settings from it. To add a setting, add a row to
its section and, if its value is not taken over as it is, a line to derive.py.
"""

from metaq.config.sources import Config, Setting, load

__all__ = ["Config", "Setting", "load"]
