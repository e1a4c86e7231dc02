"""`python -m hybridcomm`: see hybridcomm.cli."""

from __future__ import annotations

import sys

from hybridcomm.cli import main

sys.exit(main())
