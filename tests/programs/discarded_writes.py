"""Writes in every way that Python has, in a folder whose writes go to another one.

`python discarded_writes.py HERE AWAY` prints the paths below HERE that were written, in AWAY.
"""

import glob
import os
import pathlib
import shutil
import subprocess
import sys

from managed.cli.plan.discard import Discard, written
from managed.cli.plan.landlock import allow_writes_below

here, away = sys.argv[1:]
os.chdir(here)
can_refuse = allow_writes_below([away, "/dev"])
Discard(away, ["/dev", "/proc"]).install()


def error(function, *args):
    try:
        function(*args)
    except OSError as caught:
        return type(caught).__name__


with open("there.txt", "a") as file:
    file.write("new")
assert pathlib.Path("there.txt").read_text() == "oldnew"
pathlib.Path("kept/a.txt").write_text("changed")
assert pathlib.Path("kept/a.txt").read_text() == "changed"
assert sorted(os.listdir("kept")) == ["a.txt", "b.txt"]
os.makedirs("made/deep", exist_ok=True)
pathlib.Path("made/deep/x.json").write_text("{}")
assert glob.glob("**/*.json", recursive=True) == ["made/deep/x.json"]
shutil.rmtree("kept")
assert error(os.listdir, "kept") == "FileNotFoundError"
os.mkdir("kept")
assert os.listdir("kept") == []
assert error(open, "kept/b.txt") == "FileNotFoundError"
os.remove("gone.txt")
assert not os.path.exists("gone.txt") and "gone.txt" not in os.listdir()
assert error(os.remove, "gone.txt") == "FileNotFoundError"
os.rename("moved.txt", "made/moved.txt")
assert pathlib.Path("made/moved.txt").read_text() == "moved" and not os.path.lexists("moved.txt")
shutil.copytree("made", "again")
shutil.move("again/moved.txt", "again/back.txt")
assert sorted(os.listdir("again")) == ["back.txt", "deep"]
os.symlink("there.txt", "link.txt")
assert os.readlink("link.txt") == "there.txt"
os.chmod("there.txt", 0o600)
descriptor = os.open("raw.bin", os.O_WRONLY | os.O_CREAT)
os.write(descriptor, b"1234")
os.close(descriptor)
assert os.stat("raw.bin").st_size == 4
assert error(open, "nowhere/x", "w") == "FileNotFoundError"
assert error(open, "there.txt", "x") == "FileExistsError"
assert error(os.mkdir, "made") == "FileExistsError"
assert error(os.rmdir, "made") == "OSError"
assert error(os.mkdir, "no/no") == "FileNotFoundError"
flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
assert error(os.open, "there.txt", flags) == "FileExistsError"
if can_refuse:  # what is no function of Python's
    done = subprocess.run(["touch", "touched"], capture_output=True, text=True)
    assert "Permission denied" in done.stderr, done
    assert subprocess.run(["cat", "there.txt"], capture_output=True, text=True).stdout == "old"
print(*(path[len(here) + 1 :] for path, size in written(away)))
