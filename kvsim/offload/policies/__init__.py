"""Eviction policies, one file each, all with the methods of `EvictionPolicy` in the same order."""
