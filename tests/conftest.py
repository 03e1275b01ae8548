"""What holds for every test: one compute thread a process, and random tests that print how to repeat themselves."""

import os

# Set before any test imports torch: libraries read it once, when they load.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import settings

# No deadline: a busy machine is no failure, and timings are never asserted.
settings.register_profile("tidemill", deadline=None, print_blob=True)
settings.load_profile("tidemill")
