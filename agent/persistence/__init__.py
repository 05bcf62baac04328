"""What makes allocations survive: the state directory, its checkpoint, and one directory per allocation."""
