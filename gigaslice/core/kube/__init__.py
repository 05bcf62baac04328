"""Kubernetes objects and notations as values. Pure."""
