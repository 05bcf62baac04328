"""Which cards may be given out: Xids, memory errors and lost devices, probation, and cordons of people.

`xids` and `rules` decide and do no I/O, `files` has the two small files in the state directory, `keeper` joins them.
"""
