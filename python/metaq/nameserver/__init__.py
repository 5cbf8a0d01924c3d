"""The name server: which brokers there are and which topics they hold, told to whoever asks.

Brokers register (`registration` reads what they say, `requests` answers), `routes` is the table itself,
`key_values` the small configuration beside it. Routes do not outlive the process: brokers tell them anew.
"""

from metaq.nameserver.nameserver import NameServer

__all__ = ["NameServer"]
