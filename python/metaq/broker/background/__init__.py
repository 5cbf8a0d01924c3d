"""Work that runs on its own: registration, rebalance notices, subscription inquiries, transaction checks."""
