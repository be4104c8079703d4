"""Copies that nobody waits for, on virtual GPUs: what comes after them, wait by wait.

Programs as in test_virtual_runtime.py: kernels do nothing, copies are as late as they may be and
real, and the checker tells of two accesses without an order. What leaves and comes back by a plan
does so in programs that repeat a step of copies until it is learned.
"""

import pytest
from test_virtual_runtime import found_libraries, pytestmark, runs_program  # noqa: F401


@pytest.mark.parametrize("then", ["written", "dead", "dropped", "on the host", "on a peer"])
def test_a_copy_ahead_of_need_reads_its_block_until_it_ends(run, then):
    """A spare is given up for want of room on the host (but for "dropped") while its copy may still
    read the block. Then somebody else has the block, or writes it."""
    run(
        f"""
        then = {then!r}
        tensors, operators = repeated()
        spares = managed.stats()["spare"]
        while managed.stats()["spare"] == spares:
            next(operators)
        managed.LEARN_STEPS = False
        home = [t for t in tensors if not C.is_spilled(t)]
        if then != "dropped":
            others = give_up_spares()  # others' copies come after those that were given up
        torch.empty(1, device="cuda:2")  # which could take no guest before
        late = torch.full((2 * MIB,), 5, dtype=torch.int32).pin_memory()
        if then == "written":
            for t in home:
                t.copy_(late, non_blocking=True)
        elif then == "dead":
            tensors.clear()
            home.clear()
            operators.close()
        elif then == "on a peer":
            pass  # for the first of `new`
        else:
            C.spill_all()  # to the host
        if then != "written":
            new = [torch.empty(2 * MIB, dtype=torch.int32, device=CUDA) for _ in range(4)]
            for t in new:
                t.copy_(late, non_blocking=True)
        if then == "on a peer":
            assert C.residency("cuda:2")["guests"] == 32 * MIB
        report = races()
        assert not report, report
        """,
        devices=3,
        VIRTUAL_GPU_LINKS="0-2",
    )
