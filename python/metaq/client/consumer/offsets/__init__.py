"""Offsets of a group.

storage.py            where committed offsets are kept: at brokers; in broadcast mode in a file or in memory
committed_offsets.py  where a member starts in each queue, and what it has committed since
positions.py          "earliest", "latest", a time or an offset, as callers name them
"""
