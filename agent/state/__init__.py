"""Who holds what on this node, and the files that make it survive.

`records` has the values, `reconcile` and `measure` the decisions (no I/O), the other modules one kind of file each,
and `store` is their only user from outside.
"""
