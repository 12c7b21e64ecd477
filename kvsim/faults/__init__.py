"""Faults that a config asks for: copies that fail or stall, tiers and clients that go away."""
