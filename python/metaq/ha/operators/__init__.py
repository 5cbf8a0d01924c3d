"""The state of groups as operators see it, and the orders they give.

group_control.py    what operators may ask of a node
group_status.py     the state of a group, as one of its nodes or the register has it
register_groups.py  reads all groups of a cluster from the register, and writes a record that was forced

Requests to a broker, the administration client and the command line use it.
"""
