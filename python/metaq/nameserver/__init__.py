"""The name server: it knows which brokers there are and which topics they hold, and answers clients and
tools.

Brokers register: `registration_body` reads their bodies, `requests` answers, `route_table` is the table
itself, with the topics in `topic_table`. `claims` decides between brokers that want the same place, and
`tenure_file` keeps what it needs for that across restarts.
`key_values` is the small configuration beside it, `options` are the switches of a running name server,
`nameserver` puts everything together.

Routes do not outlive the process, because brokers register again. `route_table` has no sockets and no clock;
keep it so, because its tests depend on it. Only `metaq.serve` and `metaq.testing` make name servers.
"""

from metaq.nameserver.nameserver import NameServer

__all__ = ["NameServer"]
