"""Demand over time to GPUs, money and power: which deployments run when."""
