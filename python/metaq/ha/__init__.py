"""High availability: replicas, the register that says who is master of a broker group, and the master switch.

One master and any number of replicas share a broker name; together they are a group. The group's record
(`group_record.py`) lives in a register and changes only by compare-and-swap.

`register.py` is the interface of the register and reads `--register`. `etcd.py` implements it over etcd's
HTTP gateway, with the small HTTP client of `http_connection.py`. `memory_register.py` implements it in
memory, with faults that tests inject. A register holds a few small values, so two nodes never believe that
both of them changed one. Nothing else may be assumed: a watch is only a hint, and nothing here has a lease.

`decisions/` holds every decision as a pure function: it takes a view of the world (`view.py`) and returns
actions (`actions.py`). `conductor.py` builds the view, asks for a decision and acts; `fixed_conductor.py`
does so for groups without a register. Both act through `node_driver.py` on a `Node` (`node.py`): the store
and the stream of one broker. The simulation in `tests/simulation` runs the same conductors and decisions.

`epochs.py` says which master wrote which part of a log, and where two logs part. `node_files.py` keeps what a
node must not forget. `catch_up.py` measures how far replicas are behind. `handshake.py` is how a master and a
replica find out who the other one is, before the log is streamed.

`group_control.py` is what operators may ask of a node, and `group_status.py` the state that they see.
`register_groups.py` reads all groups of a cluster from the register and writes a record that was forced.

`metaq.broker.replication` implements `Node` over the store and the native stream, which is in
`crates/server/src/replicate`.
"""
