"""`python -m agent` is `gigaslice`."""

import sys

from agent.entry import main

sys.exit(main())
