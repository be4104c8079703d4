"""What the commands of the command line are given in tests: two processes, a machine, a profile."""

MIB, GIB = 2**20, 2**30


def device(name, model, capacity, owners, largest=(), **storages):
    """A device of a snapshot; what its owners leave of it is free."""
    kinds = ("idle", "in_use", "pinned", "moving", "held", "spilled", "guests", "storages")
    used = sum(owners.values())
    names = ("managed", "other", "guest", "replica", "reserved", "foreign")
    return {
        "name": name,
        "model": model,
        "capacity": capacity,
        "used": used,
        "free": capacity - used,
        "peak": used,
        "owners": {k: owners.get(k, 0) for k in names} | {"free": capacity - used},
        "storages": {k: storages.get(k, 0) for k in kinds},
        "holders": {},
        "largest": list(largest),
    }


def large(name, nbytes, where, stays=None, kind=None, operator=None, line=None):
    last = kind and {"kind": kind, "operator": operator, "line": line}
    return {"name": name, "bytes": nbytes, "where": where, "stays": stays, "last": last, "count": 1}


def snapshot(pid, command, devices, seconds=0, **counted):
    """Of a process, `seconds` after it began; counters that are not named are zero."""
    kinds = ("move", "copy", "write_back", "spill", "drop", "spare", "restore", "waited")
    counters = {k + end: 0 for k in kinds for end in ("", "_bytes", "_ns")} | {"host_waits": 0}
    links = counted.pop("links", {})
    assert set(counted) <= set(counters)
    return {
        "schema": 2,
        "time": 1.8e9 + seconds,
        "monotonic_ns": 10**9 * seconds,
        "process": {
            "pid": pid,
            "command": command,
            "host": "box",
            "since": 1.8e9,
            "visible": None,
        },
        "devices": devices,
        "host": {"used": 240 * MIB, "limit": 18 * GIB, "peak": 300 * MIB, "kept": 0},
        "counters": counters | counted,
        "links": links,
    }


def trainer(seconds=3723, factor=1):
    """Two cards, one nearly full. What was counted is `factor` times something."""
    weight = large("layers.0.weight", 16 * MIB, "cpu", None, "spill", "aten::addmm", "t.py:9 in f")
    state = large("exp_avg of layers.0.weight", 16 * MIB, "cuda:0", "pinned")
    nameless = large(None, 5 * MIB, "cuda:1", "in use by an operator", "copy", None, "t.py:12")
    first = {"managed": 50 * MIB, "other": 4 * MIB, "replica": 3 * MIB, "foreign": 5 * MIB}
    second = {"managed": 5 * MIB, "guest": 12 * MIB, "reserved": 2 * MIB}
    devices = [
        device("cuda:0", "NVIDIA T4", 64 * MIB, first, [weight, state], spilled=200 * MIB),
        device("cuda:1", "NVIDIA T4", 64 * MIB, second, [nameless], guests=12 * MIB),
    ]
    devices[0]["holders"] = {
        "frames": {"live": MIB, "cached": 3 * MIB, "asked": 8 * MIB, "given": 8 * MIB, "asks": 2},
        "idle": dict.fromkeys(("live", "cached", "asked", "given", "asks"), 0),
    }
    counted = {
        "spill": 100 * factor,
        "spill_bytes": 1000 * MIB * factor,
        "restore": 120 * factor,
        "restore_bytes": 1200 * MIB * factor,
        "copy": 3 * factor,
        "copy_bytes": 3000 * factor,
        "waited": 2 * factor,
        "waited_ns": 5 * 10**6 * factor,
        "host_waits": 7 * factor,
        "links": {"cpu->cuda:0": 1100 * MIB * factor, "cuda:0->cpu": 900 * MIB * factor},
    }
    command = ["/usr/bin/python3", "-m", "managed", "run", "train.py", "--rate", "0.1"]
    return snapshot(4242, command, devices, seconds, **counted)


def newcomer():
    """A process that has no devices yet, and a name that a terminal would obey."""
    return snapshot(77, ["python", "evil\x1b[2J.py"], [])


def machine():
    """What doctor finds on a machine with two cards that do not reach each other."""
    card = {
        "model": "NVIDIA T4",
        "memory": 16 * GIB,
        "compute capability": "7.5",
        "bus": "0000:3b:00.0",
        "link": "8.0 GT/s PCIe x16",
    }
    return {
        "versions": {
            "managed": "0.1.0",
            "built for torch": "2.13",
            "extensions": {"_C": "works", "_sim": "works", "_cuda": "libcudart.so: no such file"},
            "torch": "2.14.0+cu130",
            "CUDA of torch": "13.0",
            "driver": "580.65.06",
            "python": "3.12.1 (CPython)",
            "system": "Linux 6.1.0 x86_64",
            "C library": "glibc 2.36",
            "installed at": "~/venv/lib/python3.12/site-packages/managed",
        },
        "cards": {
            "found": [card | {"name": "cuda:0"}, card | {"name": "cuda:1", "link": None}],
            "why_none": None,
            "peers": [[], []],
            "simulated": [{"name": "sim:0", "memory": 512 * MIB}],
        },
        "topology": "        GPU0    GPU1\nGPU0     X      PHB\nGPU1    PHB      X",
        "memory": {
            "machine": 64 * GIB,
            "available": 40 * GIB,
            "control group": 4 * GIB,
            "for what leaves devices": 3 * GIB,
            "may be locked": None,
        },
        "libraries": {"numpy": "2.4.0", "rich": "15.0.0"},
        "environment": {"MANAGED_LOG": "DEBUG"},
        "conflicts": {"torchdistx": "it uses the same dispatch key of torch, DeferredInit"},
    }


def slice_of(kind, name, pid, tid, begin, end, **told):
    return {
        "ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid,
        "ts": begin, "dur": end - begin, "args": told,
    }  # fmt: skip


def profile():
    """A stall for each kind of cause, and a thread that waits; times in us."""

    def named(pid, name, tid=0, what="process_name"):
        return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}

    def run(name, begin, end, tid=0):
        return slice_of("run", name, 2, tid, begin, end)

    def copy(name, tid, begin, end, nbytes, **told):
        return slice_of("copy", name, 1, tid, begin, end, bytes=nbytes, **told)

    up = {"why": "an operator uses it", "operator": "aten::mm", "line": "t.py:9 in f"}
    asked = {"why": "the program asked for it", "operator": None, "line": "t.py:3 in <module>"}
    events = [
        named(0, "program"), named(1, "links"), named(2, "sim:0"),
        named(0, "thread 0", 0, "thread_name"), named(1, "cpu -> sim:0", 9900, "thread_name"),
        named(1, "sim:0 -> cpu", 99, "thread_name"),
        named(2, "stream 0", 0, "thread_name"), named(2, "stream 7", 7, "thread_name"),
        slice_of("wait", "waits for aten::copy_", 0, 0, 0.0, 250.0),
        copy("copy", 9900, 50.0, 250.0, 4096, **asked),
        run("aten::relu", 250.0, 300.0),
        slice_of("stall", "waits for event", 2, 0, 300.0, 400.0),
        copy("restore", 9900, 320.0, 400.0, 1000, **up), run("aten::mm", 400.0, 450.0),
        slice_of("stall", "waits for event", 2, 0, 450.0, 500.5),
        copy("restore", 9900, 460.0, 500.5, 1000, **up), run("aten::mm", 500.5, 510.0),
        slice_of("stall", "waits for room", 2, 0, 510.0, 530.0), run("aten::add", 530.0, 540.0),
        slice_of("stall", "waits for event", 2, 7, 510.0, 541.0),
        slice_of("wait", "waits for synchronize", 0, 0, 535.0, 540.0),
        copy("aten::copy_", 99, 571.0, 600.0, 8),
        slice_of("wait", "waits for aten::copy_", 0, 0, 541.0, 600.0),
    ]  # fmt: skip
    return {"traceEvents": events, "otherData": {"stats": {}, "devices": {}}}
