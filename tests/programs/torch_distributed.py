"""PyTorch's own tests of torch.distributed, inside of managed.on(): cuda is a simulated device.

    python torch_distributed.py PART PARTS

Two ranks run each test, with gloo's name for the group. They are forked: the devices are made in
the child. Prints what unittest prints.
"""

import os
import sys
import tempfile
import unittest

folder = tempfile.TemporaryDirectory()
os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": "2", "TEMP_DIR": folder.name}
for name in ("barrier", "test_dir", "init_dir"):
    os.mkdir(os.path.join(folder.name, name))

import torch  # noqa: E402
from torch.testing._internal import common_distributed, common_utils  # noqa: E402
from torch.testing._internal.distributed.distributed_test import (  # noqa: E402
    DistributedTest,
    TestDistBackend,
)

import managed  # noqa: E402

NOT_RUN = {
    "test_ddp_uneven_inputs": "a large convolution takes minutes",
    "test_ddp_logging_data_gpu": "operators take no time on devices without a preset",
    "test_monitored_barrier_allreduce_hang": "asks for the words of NCCL's error",
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": "likewise",
    "test_sparse_all_reduce_sum_cuda": "sparse tensors are refused on simulated devices",
}
common_distributed.TEST_CUDA = True  # in the children


class Simulated(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, *args, **kwargs):
        torch.set_num_threads(1)
        managed.simulate(devices=2, memory="1GiB")
        with managed.on():
            super()._run(*args, **kwargs)


if __name__ == "__main__":
    part, parts = map(int, sys.argv[1:])
    names = unittest.defaultTestLoader.getTestCaseNames(Simulated)
    chosen = [name for name in names[part::parts] if name not in NOT_RUN]
    common_utils.run_tests(["torch_distributed.py", "-v", *(f"Simulated.{n}" for n in chosen)])
