"""Stand-ins for what a test machine lacks: a kubelet, and later an API server."""
