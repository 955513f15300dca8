"""A model: its config.json, its layers, and the weights, cache and work that follow from them."""
