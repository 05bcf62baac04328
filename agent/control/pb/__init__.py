"""Messages and service of the agent's control socket, generated from proto/ by `make proto`; do not edit the other files."""
