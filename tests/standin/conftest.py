"""The tests here need the stand-in lane's build: ``bash tests/standin/run``."""

import os

_NEEDING = ["test_metal_faults.py", "test_metal_first_run.py", "test_metal_machines.py"]
collect_ignore = [] if "MPSCFFI_STANDIN_BUILD" in os.environ else _NEEDING
