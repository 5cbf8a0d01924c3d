"""Helpers that several test folders share; README.md says which file is for what."""
