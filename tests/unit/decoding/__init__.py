# SPDX-License-Identifier: Apache-2.0
"""What every decoder makes of what others send: a value that can be used, or its documented error.

`decoders` is the table of all of them, by role. Each is fed with objects as real components write them (`seeds`),
damaged by chance (`mutations`). A decoder that is not in the table is found in the source.
"""
