"""What several test folders share: child processes, Maven, and Apache's own servers to compare with."""
