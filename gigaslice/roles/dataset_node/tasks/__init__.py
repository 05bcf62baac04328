"""What pods ask for: one task per volume, from the request to the mounted data."""
