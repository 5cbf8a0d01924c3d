"""Attacks on a broker and its name server, and a healthy client that measures what they do to others.

`tests/faults/test_hostile.py` makes one attack after the other, `make soak ARGS="--hostile"` all of them
together. An attack opens its own connections, does its worst once, and leaves. It raises `Deceived` if a
server accepted what it must refuse. Everything here speaks through the plain client, so no limit of MetaQ's
own client protects the servers.
"""
