"""Which GPUs may be given out: Xids, memory errors and lost devices, cooldown, and cordons of people.

`xids` and `rules` decide and do no I/O, `files` has the two small files in the state directory, `controller` joins
them.
"""
