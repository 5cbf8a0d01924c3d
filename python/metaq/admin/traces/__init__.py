"""The timeline of one message, on asyncio.

message_traces.py   the part `Admin.traces`: collects traces and stored copies
timelines.py        the results, which are public
timeline_events.py  joins traces and copies into events
group_states.py     how far each group is with the message
otlp.py             writes a timeline as OpenTelemetry spans, and sends nothing

`message_traces.py` and `group_states.py` ask servers, the others none. The format of traces is in
`metaq.protocol.trace_entries`.
"""
