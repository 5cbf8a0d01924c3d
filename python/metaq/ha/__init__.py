"""High availability: the register that says who is master of a broker group, and links between its nodes.

`handshake` is how a master and a replica find out who the other one is, before the log is streamed.

`register` is the interface and reads `--register`. `etcd` implements it over etcd's HTTP gateway, with the
small HTTP client of `http_connection`. `memory_register` implements it in memory, with faults that tests and
simulations inject.

A register holds a few small values. A value changes only by compare-and-swap, so two nodes never believe that
both of them changed it. Nothing else may be assumed: a watch is only a hint, and nothing here has a lease.
"""
