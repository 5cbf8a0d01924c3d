"""The tables that a broker keeps, and the policy that is compiled from them for the data plane."""
