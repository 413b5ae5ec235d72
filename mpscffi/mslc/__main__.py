"""`python -m mpscffi.mslc` is the command `mpscffi-mslc`."""

import sys

from .cli import main

sys.exit(main())
