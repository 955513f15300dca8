"""From a declared space to the best deployments: enumeration with exact pruning, Optuna where that ends, fronts."""
