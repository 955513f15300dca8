"""Request-level event simulation of a deployment, with the cost model as its clock."""
