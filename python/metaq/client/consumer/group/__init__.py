"""Membership of a consumer group.

group_member.py     a member, which handlers and iterations are built on; its docstring lists the parts
rebalance.py        which queues are ours, and the locks of ordered consumers
assignment.py       gains and loses queues as the shares change
broker_requests.py  answers brokers: rebalance, reset offsets, report state, try one message

The strategies that divide queues are in `metaq.client.consumer.allocation`, which callers may import.
"""
