"""The broker's control plane: everything about a broker that is decided rather than moved."""

from metaq.broker.broker import Broker
from metaq.broker.options import BrokerOptions

__all__ = ["Broker", "BrokerOptions"]
