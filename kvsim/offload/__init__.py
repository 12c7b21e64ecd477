"""The ledger of KV kept outside the GPU: which chunk is where, who may be evicted, what is in flight."""
