"""KV connectors: vLLM's two-sided protocol for KV that lives outside the GPU's block pool."""
