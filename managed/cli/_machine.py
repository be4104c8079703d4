"""What this machine has, as far as managed is concerned. It asks the system, and makes no context
on any card: that would take hundreds of MiB."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import managed
from managed._backend import BROKEN, INERT, C
from managed._budgets import host_bytes
from managed._built import record
from managed.settings import VARIABLES

__all__ = ["collect", "installed"]

#: Libraries whose versions tell something in an issue.
_LIBRARIES = (
    "numpy", "scipy", "triton", "transformers", "accelerate", "peft", "diffusers", "lightning",
    "pytorch-lightning", "deepspeed", "bitsandbytes", "flash-attn", "xformers", "torch-geometric",
    "gpytorch", "cupy-cuda12x", "cupy-cuda13x", "rmm-cu12", "rmm-cu13", "safetensors", "rich",
)  # fmt: skip

#: Variables of others that change what managed can do.
_FOREIGN = (
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "LD_PRELOAD", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS",
)  # fmt: skip


def collect() -> dict[str, Any]:
    """Everything, in sections; sizes in bytes."""
    return {
        "versions": _versions(),
        "cards": _cards(),
        "topology": _topology(),
        "memory": _memory(),
        "libraries": {name: v for name in _LIBRARIES if (v := installed(name))},
        "environment": _environment(),
    }


def installed(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _at_home(path: str) -> str:
    """Without the user's name: the text is for others to read."""
    home = os.path.expanduser("~")
    return path.replace(home, "~") if len(home) > 1 else path


def _versions() -> dict[str, Any]:
    return {
        "managed": managed.__version__,
        "built for torch": record().get("torch"),
        "extensions": _extensions(),
        "torch": torch.__version__,
        "CUDA of torch": torch.version.cuda,
        "driver": _driver(),
        "python": f"{platform.python_version()} ({platform.python_implementation()}"
        f"{', without GIL' if 't' in getattr(sys, 'abiflags', '') else ''})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "C library": " ".join(platform.libc_ver()).strip() or None,
        "installed at": _at_home(str(Path(managed.__file__).parent)),
    }


def _extensions() -> dict[str, str]:
    """Of each compiled module "works", or why it cannot be imported."""
    if BROKEN is not None:
        return {"_C": str(BROKEN)}
    names = [*([] if INERT else ["_C"]), "_sim", *(["_cuda"] if torch.version.cuda else [])]
    return {name: _imported(name) for name in names}


def _imported(name: str) -> str:
    try:
        importlib.import_module(f"managed.{name}")
    except ImportError as error:
        return str(error)
    return "works"


def _driver() -> str | None:
    """Of NVIDIA's kernel module."""
    told = _text("/proc/driver/nvidia/version")
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", told)
    return match[1] if match else None


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


# ---- cards


def _cards() -> dict[str, Any]:
    """What torch sees: the cards, why there are none, and which reach each other's memory."""
    told: dict[str, Any] = {"found": [], "why_none": None, "peers": [], "simulated": []}
    if torch.version.cuda is None:
        told["why_none"] = "this torch is built without CUDA"
    else:
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            count = torch.cuda.device_count()
            told["found"] = [_card(i) for i in range(count)]
            told["peers"] = [
                [j for j in range(count) if i != j and torch.cuda.can_device_access_peer(i, j)]
                for i in range(count)
            ]
        except Exception as error:  # a driver can fail in many ways, and this is to tell of it
            told["why_none"] = str(error).partition("\n")[0]
    if not INERT and torch._C._get_privateuse1_backend_name() == "sim":
        devices = C.stats()["devices"].items()
        told["simulated"] = [{"name": name, "memory": held["capacity"]} for name, held in devices]
    return told


def _card(index: int) -> dict[str, Any]:
    p: Any = torch.cuda.get_device_properties(index)
    bus = f"{p.pci_domain_id:04x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0"
    return {
        "name": f"cuda:{index}",
        "model": p.name,
        "memory": p.total_memory,
        "compute capability": f"{p.major}.{p.minor}",
        "bus": bus,
        "link": _pcie(bus),
    }


def _pcie(bus: str) -> str | None:
    """Of a card to the host, such as "16.0 GT/s PCIe x16"; what it can do, if that is more."""
    folder = Path("/sys/bus/pci/devices", bus)

    def link(kind: str) -> str:
        speed, width = (_text(folder / f"{kind}_link_{x}").strip() for x in ("speed", "width"))
        return f"{speed} x{width}" if speed and width else ""

    now, best = link("current"), link("max")
    return f"{now} (at most {best})" if now != best else now or None


def _topology() -> str | None:
    """What NVIDIA's tool says of links between cards; it alone knows of NVLink."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, "topo", "-m"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).strip() or None


# ---- memory of the host


def _memory() -> dict[str, Any]:
    available = re.search(r"MemAvailable:\s+(\d+) kB", _text("/proc/meminfo"))
    limit = None if INERT else C.host_memory()["limit"]
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "machine": host_bytes(),
        "available": int(available[1]) << 10 if available else None,
        "control group": _group_limit(),
        "for what leaves devices": limit if limit is not None and limit < 2**62 else None,
        "may be locked": None if locked == resource.RLIM_INFINITY else locked,
    }


def _group_limit(root: str = "/") -> int | None:
    """The least limit of this process's control groups, as host_limit.cpp finds it.

    It is told also where that cannot be asked.
    """
    limits = []
    for line in _text(Path(root, "proc/self/cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        tree = "sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup"
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = Path(root, tree, group.lstrip("/"))
        while True:
            told = _text(folder / name).strip()
            if told.isdecimal() and int(told) < 2**62:
                limits.append(int(told))
            if folder == Path(root, tree) or folder == folder.parent:
                break
            folder = folder.parent
    return min(limits, default=None)


def _environment() -> dict[str, str]:
    names = [*VARIABLES, *_FOREIGN]
    return {name: _at_home(os.environ[name]) for name in names if os.environ.get(name)}
