"""Blocks by the run: the same pools and tiers as in `kvsim.cache` and `kvsim.offload`, for the fast engine."""
