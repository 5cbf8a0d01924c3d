"""The wire: one class for each command, the bodies they carry, and the way from a request to its handler.

`command` defines what a command is, `dispatch` finds its handler, `handling/` connects both to the data plane
and limits what clients may ask. The commands are in `commands/`, in files by subject. The JSON of their
bodies is in `bodies`, on top of `java_json`.

Names, codes and defaults are RocketMQ's, so a change must keep the bytes that its clients read. Brokers, name
servers, the client and the command line all use this room; it uses none of them.
"""
