"""The tests here need the stand-in lane's build: ``bash tests/standin/run``."""

import os

collect_ignore = [] if "MPSCFFI_STANDIN_BUILD" in os.environ else ["test_faults.py", "test_machines.py"]
