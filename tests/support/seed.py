"""TEST_SEED: the number that the random choices of a run of tests begin with."""

import os

__all__ = ["SEED"]

SEED = int(os.environ.get("TEST_SEED", "0"))
