"""The tables that a broker keeps, and the policy that is compiled from them for the data plane.

Three lifetimes meet here. `clients` and the leases of `locks` belong to connections and live as long as the
process. Topics, groups, offsets, delay progress, filters and statistics belong to one master: `broker_state`
makes them and loads them from the journal. `policy` sends the data plane what has changed. The journal
(`metaq.journal`) belongs to the node, whatever its role; `apache_files` translates it from and to RocketMQ's
files.

Change a table only through its methods, on the event loop: they keep the version, the journal and the
policy in step. Handlers in `requests` and tasks in `background` call this room; it calls neither.
"""
