"""Runs one node of a group: builds its view, asks for a decision, and acts.

conductor.py        a node of a group with a register; fixed_conductor.py: roles that an operator has fixed
node_driver.py      carries decisions out on a `metaq.ha.node.Node`
node_files.py       the file with what a node must not forget
boot_clock.py       the clock of the master switch
catch_up.py         measures how far replicas are behind

`metaq.broker.replication` starts a conductor, and the simulation in `tests/simulation` runs the same ones. No
rule lives here: decisions are in `metaq.ha.decisions`.
"""
