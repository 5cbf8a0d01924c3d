"""MetaQ beside Apache RocketMQ, measured by Apache's own benchmark programs: `python -m bench`."""
