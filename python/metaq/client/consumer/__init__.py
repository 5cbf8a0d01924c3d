"""Consuming: group membership, prefetch, settlement, and the three forms a user sees."""
