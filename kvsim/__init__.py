"""kvsim: what KV-cache offloading does to LLM serving, predicted."""

__version__ = "0.1.0"
