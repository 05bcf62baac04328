# SPDX-License-Identifier: Apache-2.0
"""`python -m gigaslice_cli` is `gigaslice`."""

import sys

from gigaslice_cli.entry import main

sys.exit(main())
