"""Reading topics as tables and streams: options, planning on the driver, reading on the executors."""
