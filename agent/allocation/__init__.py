"""The allocation service: which owner an Allocate is for, where it is placed, and whether it may start."""
