"""Composition roots, one per process: they read the configuration, build the objects, and run them together."""
