"""Replicas and the master switch.

One master and any number of replicas share a broker name. Together they are a group. The group's record
(`group_record.py`) lives in a register (`register.py`) and changes only by compare-and-swap.

`decisions/` holds every decision as a pure function: it takes a view of the world (`view.py`) and returns
actions (`actions.py`). `conductor.py` builds the view, asks for a decision and carries the actions out on a
node (`node.py`). The simulation in `tests/simulation` runs the same conductor and the same decisions.

`epochs.py` says which master wrote which part of a log, and where two logs part. `node_files.py` keeps what a
node must not forget.
"""
