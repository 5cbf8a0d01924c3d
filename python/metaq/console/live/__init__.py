"""The newest figures of the cluster and their history, polled once for all viewers.

live.py      `Live`: the poll, its parts, ticks for viewers
asking.py    the questions of one poll
polling.py   how long to wait between polls
parts.py     `Part`: a value, its age, and why the newest look failed
tables.py    rows of topics, groups, brokers and dead letters; rows of a broker that died stay
looks.py     rows that Apache's brokers are asked for when somebody looks at them
paging.py    search, order and pages of rows
history.py   `History`: rings of past values, within a bound of memory
rings.py     one series of values in fixed memory
recorded_figures.py  the figures of a row that the history keeps
trends.py    whether a lag falls, and when it will be gone
totals.py    sums over the cluster
changes.py   `changed_cluster`: called after an action, so that pages show its effect
latest.py    answers that single pages ask for, shared by their viewers for a moment

Pages read these values and never ask the cluster for lists themselves. Unknown values are None, never 0.
"""
