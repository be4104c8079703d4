"""The table and the picture of a plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

__all__ = ["check_picture", "draw", "tables", "text"]

Report = dict[str, Any]
Table = tuple[list[str], list[list[str]]]  # columns, rows
_SHOWN = 5  # discarded files, and places that asked for unknown numbers


def size(nbytes: float) -> str:
    """ "24.0 GiB", "512.0 MiB", "0"."""
    if nbytes < 1024:
        return f"{nbytes:.0f} B" if nbytes else "0"
    power = 4
    while nbytes < 1024**power:
        power -= 1
    return f"{nbytes / 1024**power:.1f} {' KMGT'[power]}iB"


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}" if seconds < 1e3 else f"{seconds:.0f} s"
    return f"{seconds * 1e9:.0f} ns"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, and one without a name at the end; others to the right."""
    cells = [columns, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    left = {0} if columns[-1] else {0, len(columns) - 1}
    lines = []
    for row in cells:
        padded = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def spilled(found: Report, period: str = "step") -> int:
    """Bytes that left a device for want of room, with a copy or, if there was one, without."""
    return int(sum(found[period][kind] for kind in ("spill", "spare", "drop")))


def verdict(found: Report) -> str:
    if "does_not_fit" in found:
        return f"does not fit: {found['does_not_fit']}"
    if "error" in found:
        return f"cannot be planned: {found['error']}"
    if not found["steps"]:
        return "made no step: no optimizer and no module was called"
    if not found["ended"]:
        steps = "1 step" if found["steps"] == 1 else f"{found['steps']} steps"
        return f"{_fits(found)}; the script ended after {steps}"
    return _fits(found)


def _fits(found: Report) -> str:
    if spilled(found):
        return "spills"
    return "spills, though not in this step" if spilled(found, "all") else "fits"


def _copied(found: Report) -> dict[str, int]:
    """Bytes by link: of any copy where the step was recorded, of managed's elsewhere."""
    links: dict[str, int] = found.get("copied", found["step"]["links"])
    return {link: n for link, n in sorted(links.items()) if n}


def _where(found: Report) -> str:
    return f"{found['devices']} ({found['speed']})"


def _is_room(found: Report) -> bool:
    return bool(found["devices"] == "room for all")


def _main_row(found: Report) -> list[str]:
    if not found["steps"]:
        return [_where(found), "", "", "", verdict(found)]
    of = "" if _is_room(found) else f" of {size(found['memory_bytes'])}"
    cells = [f"{size(max(found['peak_bytes']))}{of}", size(spilled(found))]
    return [_where(found), *cells, duration(found["step"]["elapsed_s"]), verdict(found)]


def _price_row(found: Report, whole: Report) -> list[str]:
    peak = max(whole["peak_bytes"])
    part = f"{found['budget_bytes'] / peak:.0%} of the peak" if peak else ""
    cells = [found["devices"], size(found["budget_bytes"]), part]
    if not found["steps"]:
        return [*cells, "", "", "", verdict(found)]
    ratio = found["step"]["elapsed_s"] / max(whole["step"]["elapsed_s"], 1e-12)
    cells += [size(spilled(found)), duration(found["step"]["elapsed_s"]), f"{ratio:.2f} x"]
    return [*cells, verdict(found)]


def wholes(plan: Report) -> dict[str, Report]:
    """What each kind of devices does without a budget."""
    return {c["devices"]: c for c in plan["configurations"] if c["budget_bytes"] is None}


def head(plan: Report) -> str:
    return f"{os.path.basename(plan['script'])} on devices without values"


def text(plan: Report) -> str:
    """The tables, and what has to be said beside them."""
    shown = (table(*each) for each in tables(plan))
    return "\n\n".join([head(plan), *shown, *notes(plan["configurations"])])


def tables(plan: Report) -> list[Table]:
    """What fits where; the bytes of links and the prices of budgets, where there are any."""
    found = plan["configurations"]
    whole = wholes(plan)
    columns = ["devices", "peak of the fullest", "leaves in a step", "step", ""]
    parts: list[Table] = [(columns, [_main_row(c) for c in whole.values()])]
    ran = [c for c in whole.values() if c["steps"] and not _is_room(c)]
    links = [[c["devices"], link, size(n)] for c in ran for link, n in _copied(c).items()]
    if links:
        parts.append((["devices", "link", "bytes in a step"], links))
    prices = [_price_row(c, whole[c["devices"]]) for c in found if c["budget_bytes"] is not None]
    if prices:
        columns = ["devices", "budget of each", "", "leaves in a step", "step", "price", ""]
        parts.append((columns, prices))
    return parts


def notes(found: Sequence[Report]) -> list[str]:
    told = []
    ended = sorted({c["steps"] for c in found if c["ended"]})
    if ended:
        settled = f", and of step {ended[-1]} where bytes leave" if len(ended) > 1 else ""
        told.append(f"Figures are of step {ended[0]}{settled}. Time is virtual.")
    thrown = sorted({f["path"] for c in found for f in c["discarded"]})
    if thrown:
        told.append(f"Not written: {_listed(thrown)}.")
    if not all(c.get("refused", True) for c in found):
        told.append(
            "This kernel cannot refuse writes (it has no Landlock): what other programs or "
            "libraries in C wrote, if the script uses any, was written."
        )
    asked = sorted({p for c in found for p in c.get("unknown", ())})
    if asked:
        told.append(f"Asked for numbers that nobody knows, and got 0: {_listed(asked)}.")
    return told


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


# ---- the picture


def check_picture(path: str | os.PathLike[str]) -> None:
    """ModuleNotFoundError without matplotlib, ValueError for a format that it does not write."""
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError("a picture needs matplotlib: pip install matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.filetypes
    if os.path.splitext(path)[1].lower().lstrip(".") not in known:
        raise ValueError(f"{path} ends in no format of a picture; there are {', '.join(known)}")


def draw(plan: Report, path: str | os.PathLike[str]) -> None:
    """What each device holds, how it goes over a step, and what budgets cost; one row a kind."""
    from matplotlib.figure import Figure

    ran = [c for c in wholes(plan).values() if c["steps"] and not _is_room(c)]
    rows = max(1, len(ran))
    figure = Figure(figsize=(12, 2.6 * rows), layout="constrained")
    parts = figure.subplots(rows, 3, squeeze=False, width_ratios=(2, 3, 2))
    for axes, whole in zip(parts, ran, strict=False):
        unit = "GiB" if max(whole["peak_bytes"]) >= 2**29 else "MiB"
        scale = 2**30 if unit == "GiB" else 2**20
        room = whole["memory_bytes"] / scale
        peaks = [n / scale for n in whole["peak_bytes"]]
        axes[0].bar([f"sim:{i}" for i in range(len(peaks))], peaks, color="#4878cf")
        axes[0].set_title(_where(whole), fontsize="medium", loc="left")
        axes[0].set_ylabel(f"{unit} at the peak")
        _draw_memory(axes[1], whole, scale)
        axes[1].set_ylabel(f"{unit} in use")
        for some in axes[:2] if room < 2 * max(peaks) else axes[:1]:
            some.axhline(room, color="#d65f5f", linewidth=1)
        priced = [c for c in plan["configurations"] if c["devices"] == whole["devices"]]
        _draw_prices(axes[2], max(whole["peak_bytes"]), [c for c in priced if c["steps"]], scale)
        axes[2].set_xlabel(f"{unit} of each device")
    figure.savefig(path)


def _draw_memory(axes: Any, found: Report, scale: int) -> None:
    until = found["step"]["elapsed_s"] * 1e3
    for device, points in found.get("memory", {}).items():
        if points:
            times = [*(s * 1e3 for s, _ in points), until]
            held = [n / scale for _, n in [*points, points[-1]]]
            axes.step(times, held, where="post", label=device, linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ms of the last step")
    if axes.lines:
        axes.legend(fontsize="x-small", loc="lower center", ncols=4)


def _draw_prices(axes: Any, peak: int, found: Sequence[Report], scale: int) -> None:
    points = sorted((c["budget_bytes"] or peak, c["step"]["elapsed_s"] * 1e3) for c in found)
    axes.plot([b / scale for b, _ in points], [ms for _, ms in points], "o-", color="#6acc65")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("ms of a step")
