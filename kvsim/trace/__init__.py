"""Traces: reading recorded workloads, generating synthetic ones, playing them and describing them."""
