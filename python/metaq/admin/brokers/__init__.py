"""The servers of a cluster, and what is connected to them, on asyncio.

servers.py          the part `Admin.brokers`: who the servers are, their configuration and figures
clients.py          the clients that are connected to brokers
broker_groups.py    groups of brokers: their state, switches and drains
group_views.py      joins the views that nodes have of their group

The health check, commands and `metaq.dev` use `broker_groups.py` as well.
"""
