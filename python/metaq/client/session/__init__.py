"""Connections, routes and heartbeats that every part of a client shares."""
