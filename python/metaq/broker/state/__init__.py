"""The tables that a broker keeps, and the policy that is compiled from them for the data plane.

Three lifetimes meet here. `clients` and the leases of `locks` belong to connections and live as long as the
process. Topics, groups, offsets, delay progress, filters and statistics belong to one master: `master_state`
makes them, loads them from `config/` and writes them back. `policy` sends the data plane what has changed.

Change a table only through its methods, on the event loop: they keep the version, the file and the policy in
step. Handlers in `requests` and tasks in `background` call this room; it calls neither.
"""
