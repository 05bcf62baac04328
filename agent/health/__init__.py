# SPDX-License-Identifier: Apache-2.0
"""Which GPUs get new containers: conditions such as Xids, memory errors and lost devices, their cooldown, and cordons.

`xids` and `conditions` decide and do no I/O, `health_files` reads and writes the two files in the state directory,
`controller` joins them. A GPU with a condition is unhealthy; a cordon is an administrator's order and no condition.
"""
