"""Servers side by side on one clock: the router in front of them, who comes and goes, and what they are together."""
