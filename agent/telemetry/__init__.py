"""What the agent tells about itself. Nothing in here decides anything."""
