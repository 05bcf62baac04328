"""`make test-nvidia-smi`: the real nvidia-smi of several driver branches under the library."""
