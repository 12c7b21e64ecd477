"""Secondary tiers in time: storage behind the CPU tier, on SimPy."""
