"""The answer as data: deployments, fronts, explanations; reading and writing them."""
