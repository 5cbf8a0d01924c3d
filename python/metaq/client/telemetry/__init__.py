"""Spans, metrics and RocketMQ's trace topic: everything a client reports about its work."""
