"""Messages and services of the CSI and of the kubelet's plugin registration, generated from proto/ by `make proto`; do not edit the other files."""
