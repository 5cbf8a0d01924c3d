"""The commands: one class for each, with its code, its fields and its answer, in files by subject.

A handler is a method with `@handles(…)` beside the state that it touches. Brokers, name servers and both
clients use these classes; the classes use only the files of the room above.
"""
