"""High availability: replicas, the register that says who is master of a broker group, and the master switch.

One master and any number of replicas share a broker name; together they are a group. The group's record
(`group_record.py`) lives in a register and changes only by compare-and-swap.

register.py   the interface of the register, which also reads `--register`; `registers/` implements it
decisions/    every decision as a pure function: it takes a view of the world (`view.py`), with the settings
              of the group (`settings.py`), and returns actions (`actions.py`)
conducting/   builds the view of one node, asks for a decision and acts on a `Node` (`node.py`): the store and
              the stream of one broker
operators/    the state of groups as operators see it, and the orders they give
epochs.py     which master wrote which part of a log, and where two logs part
handshake.py  how a master and a replica find out who the other one is, before the log is streamed

A register holds a few small values, so two nodes never believe that both of them changed one. Nothing else
may be assumed: a watch is only a hint, and nothing here has a lease. The simulation in `tests/simulation`
runs the same conductors and decisions. `metaq.broker.replication` implements `Node` over the store and the
native stream, which is in `crates/server/src/replicate`.
"""
