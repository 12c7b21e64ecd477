"""Our steps against those of the real vLLM: scenarios on a step clock, recordings, and what differs."""
