"""Resources beside GPU memory, each behind one small interface: `provider` has it, the other modules implement it."""
