"""Resources beside GPU memory. `provider` has the interface, the other modules implement it."""
