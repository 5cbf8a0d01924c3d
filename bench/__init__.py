"""MetaQ beside Apache RocketMQ, measured by Apache's own benchmark programs: `make bench` or `python -m bench`."""
