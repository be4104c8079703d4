"""Runs a function with values and without, each in a process that has the libraries imported."""

import multiprocessing
import sys

__all__ = ["run"]


def run(write):
    """`python PROGRAM FILE FILE EVERY`: write(file, values, every) for both, in forked children."""
    for file, values in zip(sys.argv[1:3], (True, False), strict=True):
        child = multiprocessing.get_context("fork").Process(
            target=write, args=(file, values, int(sys.argv[3]))
        )
        child.start()
        child.join()
        if child.exitcode:
            sys.exit(1)
