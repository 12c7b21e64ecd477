"""The KV copies of a simulated run, done for real: measured, verified byte by byte, and turned into a link profile."""

from __future__ import annotations
