"""Routers, one per file: the same methods in the same order."""
