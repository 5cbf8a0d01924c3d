"""The wire: one class per command, the bodies they carry, and the way from a request to its handler.

`command` says what a command is, `dispatch` finds its handler, `pump` connects that to the data plane. The
commands stand in files by subject: `routes`, `topics`, `groups`, `messages`, `offsets`, `clients`, `admin`,
`cluster`; the JSON of their bodies in `bodies`, on top of `java_json`.
"""
