"""Telemetry: spans, metrics and RocketMQ's trace topic.

telemetry.py    the one object that producers and consumers call
tracing.py      spans of OpenTelemetry, and the context that messages carry
metrics.py      counters and histograms of OpenTelemetry
trace_topic.py  RocketMQ's own trace, in the encoding of the Java client

Nothing is created while nobody listens, and a failure here never disturbs a message. docs/python.md lists
the names.
"""
