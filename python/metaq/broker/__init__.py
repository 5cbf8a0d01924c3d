"""The broker's control plane.

Python owns configuration, membership and rare decisions. Rust applies rules per message, from data that
Python gave it. Every rule has exactly one owner.

`broker` is the broker itself: a `node` that lives as long as the process, and the role that it plays, which
is a lifetime of its own (`master`). Rooms: `state` has the tables and the policy, `requests` the handlers,
`background` the work that nobody asks for, `functions` the operator's filter functions, `sql92` the filter
language.

Only `metaq.serve` and `metaq.testing` make brokers, from `BrokerOptions`.
"""

from metaq.broker.broker import Broker
from metaq.broker.options import BrokerOptions

__all__ = ["Broker", "BrokerOptions"]
