"""A deployment as files that start it: scripts of an engine, or manifests of what runs engines on Kubernetes."""
