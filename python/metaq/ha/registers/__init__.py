"""Registers, which hold the records of groups, and one node's dealings with its register.

etcd.py              a register in etcd, over etcd_gateway.py and the small HTTP client http_connection.py
memory_register.py   a register in memory, with faults that tests inject
register_session.py  reads the register for one node, changes the record, and beats

The interface of a register is `metaq.ha.register`. Conductors use a session; commands use a register itself.
"""
