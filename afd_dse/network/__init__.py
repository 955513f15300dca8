"""Links between GPUs: tiers, collectives, expert dispatch and combine, attention-to-FFN and KV transfers."""
