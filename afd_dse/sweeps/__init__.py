"""Many jobs: a matrix of them computed by an engine, each result stored once under what it depends on."""
