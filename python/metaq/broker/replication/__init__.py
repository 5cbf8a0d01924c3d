"""A broker as one node of a group: it copies its master's log, or lets replicas copy its own.

`metaq.ha` decides who is master; this folder carries that out on a broker. `group_node.py` implements
`metaq.ha.node.Node` over the store, the journal and the links. `link_port.py` accepts replicas on the
replication port, `replica_links.py` is a master's end of their links, `source_link.py` a replica's end.
`state_stream.py` puts the journal into the stream. `group.py` starts all of it and is what the rest of the
broker talks to. `options.py` holds the settings.

`apache_*.py` speak Apache's replication protocol, for a move between both brokers. `apache_start.py` decides
at the start whether this broker copies an Apache master, `apache_control.py` copies until an operator lets it
take over, and `apache_move.py` follows that master, with `apache_source.py` and `apache_state.py` for its
control state. `apache_slaves.py` lets Apache slaves copy this master.

The bytes of the log never pass through here: `crates/server/src/replicate` moves them.
"""
