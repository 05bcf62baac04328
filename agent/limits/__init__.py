"""Limits of running containers, applied: memory, compute time, time slices, CPUs."""
