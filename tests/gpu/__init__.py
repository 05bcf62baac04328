"""Tests on a real card: `make test-gpu` builds, runs and writes a report, with the standard library alone."""
