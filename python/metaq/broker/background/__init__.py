"""Work that runs on its own: registration, rebalance notices, subscription inquiries, transaction checks, and
the locks of clients that have vanished, and groups that hold messages without a commit.

Each class belongs to one master: it starts and stops with it, and a failure never ends it for good. Only
`closed_connections` belongs to the node, because connections outlast a role.
`housekeeping` runs whatever is due at an interval. Times come from the injected clock, so tests can move
them.

`metaq.broker.master` makes, starts and stops everything here. These tasks read and change `state` and speak
to clients through the pump; no handler waits for them, except for `subscription_inquiry`.
"""
