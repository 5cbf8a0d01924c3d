"""Helpers that several test folders share: child processes, Maven, databases, and Apache's own servers."""
