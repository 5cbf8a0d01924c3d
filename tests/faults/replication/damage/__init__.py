"""Seeded trials in which the disk of one node lies, on real processes.

`plan.py` draws a damage from a seed and names it. `files.py` does it to the files of a node. `traffic.py`
sends messages and remembers every acknowledgement. `world.py` is a group with backups of its files and of its
register. `reading.py` reads everything from one node, by queue offset and as a consumer. `oracle.py` compares
that with what was acknowledged. `operator.py` starts dead nodes again and does what a refusal asks for.
`trial.py` makes one trial of these parts, `series.py` many trials, `side_by_side.py` several at a time,
and `summary.py` counts them. `known.py` lists the damage that must not hurt, and the damage that still does.
`apache_world.py` is a group of Apache's brokers for the same trials.

`make soak ARGS="--damage"` runs hundreds of trials, `test_damage_trials.py` a chosen few.
"""
