"""Sending: tries, queue selection, the send buffer, transactions and request/reply."""
