"""The Python client beside those of Kafka: each against its own broker, in alternating rounds."""
