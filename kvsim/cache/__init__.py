"""Where KV blocks live on the GPU: the block pool and the block tables of requests."""
