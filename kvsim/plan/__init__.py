"""Planning: sweeps, miss-ratio curves, and the search for what to buy."""
