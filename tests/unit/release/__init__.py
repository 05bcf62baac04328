"""Making a release, without making one."""
