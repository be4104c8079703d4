"""Files of what devices learned: another process follows it at once, and no file does harm."""

import json
from hashlib import blake2b

import pytest
from support import interpreters
from support.paths import PROGRAMS

import managed

PROGRAM = PROGRAMS / "followed_plans.py"


def run(path):
    done = interpreters.run([PROGRAM, path], options=())
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()], done.stderr


def test_a_second_process_follows_at_once_and_a_damaged_file_is_replaced(tmp_path):
    path = tmp_path / "steps.plans"
    first, _ = run(path)
    assert [first[0][1], first[-1][1]] == ["False", "True"]
    second, errors = run(path)
    assert not errors
    assert second[0][:2] == ["1", "True"]
    assert [row[3] for row in second] == [row[3] for row in first]
    assert second[1][2] == second[-1][2]
    path.write_bytes(path.read_bytes()[:-1])
    third, errors = run(path)
    assert "damaged or cut short" in errors
    assert third == first
    assert [p.name for p in tmp_path.iterdir()] == ["steps.plans"]
    assert run(path)[0][0][0] == "1"


def signed(content):
    return content + blake2b(content, digest_size=32).digest()


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (b"no plans", "no file of managed.save_plans"),
        (b"managed plans\nx", "damaged or cut short"),
        (signed(b"managed plans\n[]\n"), "whose steps"),
        (signed(b'managed plans\n{"devices": {"sim:0": -1}}\n'), "whose steps"),
        (signed(b'managed plans\n{"devices": {}, "format": 0}\n'), "it is for format 0"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(tmp_path, told, why):
    path = tmp_path / "file"
    path.write_bytes(told)
    with pytest.warns(UserWarning, match=why):
        assert managed.load_plans(path) == 0


def test_other_devices_and_no_file(tmp_path):
    path = tmp_path / "file"
    assert managed.load_plans(path) == 0
    managed.save_plans(path)
    content = path.read_bytes()[:-32]
    told = json.loads(content.split(b"\n")[1]) | {"devices": {"sim:99": 8}}
    path.write_bytes(signed(b"managed plans\n" + json.dumps(told).encode() + b"\n" + bytes(8)))
    with pytest.warns(UserWarning, match="sim:99 that are not used: there is no such device"):
        assert managed.load_plans(path) == 0
    with pytest.raises(FileNotFoundError):
        managed.save_plans(tmp_path / "none" / "file")
