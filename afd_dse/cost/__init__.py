"""The cost model: candidates in columns in, latency, throughput, memory and their reasons in columns out."""
