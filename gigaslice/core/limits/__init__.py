"""Limits of running containers: memory, compute time and time slices, as arithmetic. Pure."""
