"""Clients and a broker at full rate for a long time: their memory and their descriptors stay flat."""
