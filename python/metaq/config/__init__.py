"""Configuration: every setting, the sources that it is read from, and the values that follow from it.

options.py   the table of options: name, kind, default, help; with broker_options.py, store_options.py
option.py    one option, and the sections
kinds.py     how a text becomes a value
sources.py   flags, --set, environment and files, and which of them wins
kept.py      values that operators changed at run time and that count at the next start
upstream.py  reads broker.conf of Apache RocketMQ
derive.py    computes the settings of the roles, and checks limits between options

The command line and `metaq.testing` load a Config and derive settings from it. To add a setting, add a row to
its section and, if its value is not taken over as it is, a line to derive.py. `RUN_TIME` at the end of a row
makes it changeable at run time; `metaq.broker.state.run_time_options` then applies it.
"""

from metaq.config.sources import Config, Setting, load

__all__ = ["Config", "Setting", "load"]
