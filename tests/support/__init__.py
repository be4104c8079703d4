"""What several files of tests share. `tests` is on the path of pytest and of tests/*.py."""
