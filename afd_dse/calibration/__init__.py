"""Measured against predicted: what the estimates are judged by."""
