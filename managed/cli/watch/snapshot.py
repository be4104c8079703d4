"""What a process tells of itself, and what two such tellings say of the time in between."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

from managed._backend import C
from managed._modules import named

__all__ = ["SCHEMA", "Teller", "owners", "rates"]

#: Rises when a field of a snapshot goes or changes its meaning; new ones may come at any time.
SCHEMA = 2

_ASKED = 64  # tensors a device that are looked at
_LARGEST = 8  # and that are told of, alike ones without a name as one
_KINDS = ("move", "copy", "write_back", "spill", "drop", "spare", "restore", "waited")


class Teller:
    """Makes snapshots of this process. It asks for numbers alone: nothing moves or is allocated."""

    def __init__(self) -> None:
        self.since = time.time()
        self.names: dict[int, str] = {}
        self.asked = False  # for names, in this snapshot
        self.models: dict[str, str] = {}

    def snapshot(self) -> dict[str, Any]:
        """Sizes in bytes, times in ns."""
        self.asked = False
        stats = C.stats()
        devices = [self._device(name, held) for name, held in stats["devices"].items()]
        counters = {k + end: stats[k + end] for k in _KINDS for end in ("", "_bytes", "_ns")}
        return {
            "schema": SCHEMA,
            "time": time.time(),
            "monotonic_ns": time.monotonic_ns(),
            "process": {
                "pid": os.getpid(),
                "command": sys.orig_argv,
                "host": socket.gethostname(),
                "since": self.since,
                "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            },
            "devices": devices,
            "host": C.host_memory(),
            "counters": counters | {"host_waits": stats["host_waits"]},
            "links": stats["links"],
        }

    def _device(self, name: str, held: dict[str, Any]) -> dict[str, Any]:
        residency = C.residency(name)
        return {
            "name": name,
            "model": self._model(name),
            **{k: held[k] for k in ("capacity", "used", "free", "peak")},
            "owners": owners(held, residency),
            "holders": held["holders"],
            "storages": residency,
            "largest": _alike(self._large(*large) for large in C.largest(name, _ASKED))[:_LARGEST],
        }

    def _large(
        self,
        number: int,
        nbytes: int,
        where: str,
        stays: str | None,
        kind: str | None,
        operator: str | None,
        site: str | None,
    ) -> dict[str, Any]:
        if number not in self.names and not self.asked:
            self.names, self.asked = named.names(), True
        event = None if kind is None else {"kind": kind, "operator": operator, "line": site}
        return {
            "name": self.names.get(number),
            "bytes": nbytes,
            "where": where,
            "stays": stays,
            "last": event,
            "count": 1,
        }

    def _model(self, name: str) -> str:
        if name not in self.models:
            kind, _, index = name.partition(":")
            self.models[name] = _card(int(index)) if kind == "cuda" else "simulated"
        return self.models[name]


def _alike(larges: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with a name before others of their size; of others of one size at one place, one."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for i, t in enumerate(larges):
        told = found.setdefault((i if t["name"] else -1, t["bytes"], t["where"], t["stays"]), t)
        if told is not t:
            told["count"] += 1
            told["last"] = None
    return sorted(found.values(), key=lambda t: (-t["bytes"], t["name"] is None))


def _card(index: int) -> str:
    import torch

    return str(torch.cuda.get_device_properties(index).name)


def owners(held: dict[str, int], residency: dict[str, int]) -> dict[str, int]:
    """Whose the bytes of a device are: all add up to the larger of its capacity and what is used.

    What torch's allocator has given is of tensors that may leave, of other devices' tensors that
    are guests here, or of what managed does not move.
    """
    at_home = sum(residency[k] for k in ("idle", "in_use", "pinned", "held"))
    guest = min(residency["guests"], held["managed"])
    managed = min(at_home, held["managed"] - guest)  # the two were read one after the other
    return {
        "managed": managed,
        "other": held["managed"] - guest - managed,
        "guest": guest,
        "replica": held["replica"],
        "reserved": held["reserved"],
        "foreign": held["foreign"],
        "free": max(0, held["capacity"] - held["used"]),
    }


def rates(before: dict[str, Any], now: dict[str, Any]) -> dict[str, float]:
    """What was counted a second between two snapshots of one process; links as "link cpu->sim:0".

    Nothing where no time has passed. A counter that went back was reset in between.
    """
    seconds = (now["monotonic_ns"] - before["monotonic_ns"]) / 1e9
    if seconds <= 0:
        return {}

    def flat(snapshot: dict[str, Any]) -> dict[str, int]:
        links = {f"link {k}": n for k, n in snapshot["links"].items()}
        return {**snapshot["counters"], **links}

    old = flat(before)
    return {
        k: (n - old.get(k, 0) if n >= old.get(k, 0) else n) / seconds for k, n in flat(now).items()
    }
