"""Consumer groups, on asyncio and for plain code.

consumer_groups.py  the part `Admin.groups`: settings, members, progress and resets
group_settings.py   reads settings without creating the group
group_figures.py    the figures of all groups for lists
running_members.py  asks the clients of a group for reports on themselves
stacks.py           puts the stacks of a member in an order for people
sync.py             that part for plain code

Messages, dead letters and connected clients read settings here too, because to ask a broker for the settings
of an unknown group may create it.
"""
