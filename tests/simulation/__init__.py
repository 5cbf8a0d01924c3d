"""A seeded simulation of a replicated broker group.

The decisions and the conductor are the real ones (`python/metaq/ha`). Time, network, disks, the register and
the clients are simulated, so that a run of a minute takes milliseconds and the same seed gives the same run.

    python -m tests.simulation --scenario kill_any_role --seed 7
    python -m tests.simulation --runs 10000

`virtual_loop.py` is the clock and the scheduler, `network.py` the connections, `disk.py` the disks,
`faulty_register.py` the register, `host.py` a machine, `stream.py` the replication stream of one process,
`clients.py` producers and a consumer, `checks.py` what must hold, `scenarios.py` what goes wrong,
`mutants.py` mistakes that the checks must notice.
"""
