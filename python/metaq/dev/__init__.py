"""A whole cluster on one machine, for trying, demos and tests: `metaq dev cluster`.

`plan.py` says which processes there are, with which ports and commands. `ports.py` finds free ports.
`child.py` runs one process, which `leash.py` binds to the life of its parent. `readiness.py` waits until
every group has a master and all nodes are in sync. `cluster.py` puts them together, restarts nodes, and keeps
`cluster.json` up to date.

Everything is real: etcd, name servers and brokers are separate processes on loopback, started with commands
that you can repeat by hand.
"""
