"""Draws the five pictures of docs/how_it_works.md: SVG, one for light pages and one for dark.

    python tools/pictures.py [FOLDER]          # docs/img unless named

They are 440 wide, so that their letters can be read on a phone. tests/docs/test_docs.py checks that
what is committed is what this draws.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

WIDTH = 440
COLOURS = {
    "light": {
        "ink": "#1b1f24", "soft": "#57606a", "line": "#8c959f", "paper": "#f6f8fa",
        "host": "#fff1c9", "first": "#cdeae6", "second": "#d9e2fb", "hot": "#b3480f",
    },
    "dark": {
        "ink": "#e6e9ee", "soft": "#aab3bf", "line": "#7d8896", "paper": "#2b303b",
        "host": "#574512", "first": "#15514a", "second": "#2c3f74", "hot": "#ff9a5c",
    },
}  # fmt: skip


class Picture:
    """Shapes that are added one after the other; `colour` names one of COLOURS."""

    def __init__(self, height: int, told: str) -> None:
        self.height, self.told, self.parts = height, told, list[str]()

    def text(
        self, x: float, y: float, words: str, colour: str = "ink", anchor: str = "middle",
        size: int = 13, bold: bool = False,
    ) -> None:  # fmt: skip
        """Lines of words, of which the first has its middle at y."""
        weight = ' font-weight="600"' if bold else ""
        for n, line in enumerate(words.split("\n")):
            self.parts.append(
                f'<text x="{x}" y="{y + n * (size + 4) + size * 0.35:.1f}" fill="{{{colour}}}" '
                f'font-size="{size}" text-anchor="{anchor}"{weight}>{escape(line)}</text>'
            )

    def box(
        self, x: float, y: float, w: float, h: float, words: str = "", colour: str = "paper",
        dashed: bool = False, size: int = 13,
    ) -> None:  # fmt: skip
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{{{colour}}}" '
            f'stroke="{{line}}"{dash}/>'
        )
        above = (words.count("\n") * (size + 4)) / 2
        self.text(x + w / 2, y + h / 2 - above, words, size=size)

    def device(self, x: float, y: float, w: float, h: float, name: str, colour: str) -> None:
        """A frame with a name; what it holds is drawn into it."""
        self.box(x, y, w, h, colour=colour)
        self.text(x + 10, y + 15, name, anchor="start", bold=True)

    def arrow(self, *points: tuple[float, float], colour: str = "line", words: str = "") -> None:
        """Through the points, with a head; the words stand beside its middle."""
        way = " ".join(f"{x},{y}" for x, y in points)
        head = "hot" if colour == "hot" else "line"
        self.parts.append(
            f'<polyline points="{way}" fill="none" stroke="{{{colour}}}" stroke-width="2" '
            f'marker-end="url(#{head})"/>'
        )
        if words:
            (a, b), (c, d) = points[len(points) // 2 - 1], points[len(points) // 2]
            lift = -10 if b == d else 0
            side = 8 if b != d else 0
            anchor = "start" if side else "middle"
            self.text((a + c) / 2 + side, (b + d) / 2 + lift, words, "soft", anchor, 12)

    def draw(self, scheme: str) -> str:
        """The file, in the colours of one scheme."""
        colours = COLOURS[scheme]
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{colours[name]}"/>'
            "</marker>"
            for name in ("line", "hot")
        )
        body = "\n".join(self.parts)
        for name, colour in colours.items():
            body = body.replace(f"{{{name}}}", colour)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" height="{self.height}" role="img" '
            f'font-family="system-ui, sans-serif">\n'
            f"<title>{escape(self.told)}</title>\n<defs>{heads}</defs>\n{body}\n</svg>\n"
        )


def call() -> Picture:
    p = Picture(452, "One call: from the program to the operator, through the chokepoint")
    p.box(100, 8, 240, 46, "y = a @ b\nPython, C++, optimizer, backward")
    p.arrow((220, 54), (220, 82))
    p.box(100, 84, 240, 46, "torch's dispatcher: does an\noperand carry the managed key?")
    p.arrow((340, 107), (392, 107), (392, 356), words="")
    p.text(366, 96, "no", "soft", size=12)
    p.arrow((220, 130), (220, 168), words="yes")
    p.box(100, 170, 240, 46, "the chokepoint: are the\noperands on one device?", "first")
    p.arrow((100, 193), (46, 193), (46, 356))
    p.text(74, 182, "yes", "soft", size=12)
    p.arrow((220, 216), (220, 254), words="no")
    p.box(
        100,
        256,
        240,
        62,
        "choose a device: the core\ncopy what stands elsewhere\nand note why",
        "second",
    )
    p.arrow((220, 318), (220, 356))
    p.box(14, 358, 412, 40, "autograd and the kernel: torch's own, run once")
    p.arrow((220, 398), (220, 420))
    p.text(220, 434, "the result carries the key, too", "soft")
    return p


def meet() -> Picture:
    p = Picture(
        304, "Operands meet: the small one is copied to the large one, and its copy is kept"
    )
    p.device(8, 8, 200, 190, "cuda:0", "first")
    p.device(232, 8, 200, 190, "cuda:1", "second")
    p.box(24, 40, 168, 60, "a: 64 MiB")
    p.box(264, 40, 136, 34, "b: 1 MiB")
    p.box(64, 116, 128, 34, "copy of b", dashed=True)
    p.arrow((332, 74), (332, 133), (194, 133), colour="hot")
    p.text(262, 121, "1 MiB", "hot", size=12)
    p.text(332, 152, "counted, timed,\nwith its reason", "soft", size=12)
    p.text(108, 178, "a + b runs here", "soft", size=12)
    p.text(220, 222, "Next use of b on cuda:0: the copy serves, nothing moves.", size=13)
    p.text(220, 246, "b is written: the copy is out of date and goes.", size=13)
    p.text(220, 270, "Each step needs b here, and nobody put it there: b moves.", size=13)
    p.text(220, 294, "b is pinned: it stays, and a comes to it.", size=13)
    return p


def plan() -> Picture:
    p = Picture(290, "A step and its plan: weights leave behind their use and are fetched ahead")
    p.text(8, 14, "the device: three layers, forward and backward", anchor="start", bold=True)
    for n, name in enumerate(("1", "2", "3", "3", "2", "1")):
        p.box(8 + n * 71, 28, 67, 34, name, "first" if n < 3 else "second")
    p.box(79, 90, 90, 30, "1 leaves", "host")
    p.text(180, 105, "to the host, behind its use", "soft", "start")
    p.box(260, 134, 90, 30, "1 comes", "host")
    p.text(250, 149, "back, ahead of its use", "soft", "end")
    p.arrow((42, 62), (42, 105), (77, 105), colour="hot")
    p.arrow((350, 149), (397, 149), (397, 64), colour="hot")
    p.text(8, 190, "bytes on the device", anchor="start", bold=True)
    p.parts.append(
        '<polyline points="8,258 8,240 79,240 79,222 169,222 169,238 260,238 260,222 363,222 '
        '363,240 434,240 434,258" fill="none" stroke="{ink}" stroke-width="2"/>'
        '<line x1="8" y1="214" x2="434" y2="214" stroke="{hot}" stroke-dasharray="5 4"/>'
    )
    p.text(434, 200, "the budget", "hot", "end", 12)
    p.text(220, 276, "time", "soft", size=12)
    return p


def home() -> Picture:
    p = Picture(372, "Gradients and writes go home, to the device of their tensor")
    p.text(8, 14, "backward: the gradient goes to its parameter", anchor="start", bold=True)
    for top in (28, 214):
        p.device(8, top, 200, 136, "cuda:0", "first")
        p.device(232, top, 200, 136, "cuda:1", "second")
    p.box(24, 58, 168, 34, "y = x @ copy of W", dashed=True)
    p.box(264, 58, 136, 34, "W: a parameter")
    p.arrow((262, 75), (194, 75))
    p.box(24, 114, 168, 34, "gradient of the copy")
    p.box(264, 114, 136, 34, "W.grad")
    p.arrow((192, 131), (262, 131), colour="hot")
    p.text(8, 200, "write back: a copy that was written goes home", anchor="start", bold=True)
    p.box(24, 244, 168, 42, "batch_norm(x) writes\na copy of the mean")
    p.box(264, 244, 136, 42, "running mean")
    p.arrow((192, 265), (262, 265), colour="hot")
    p.text(108, 306, "x is here,\nso it runs here", "soft", size=12)
    p.text(332, 306, "it keeps its place\nand its views", "soft", size=12)
    p.text(220, 364, "A tensor's .device is true before and after.", "soft", size=12)
    return p


def pretend() -> Picture:
    p = Picture(366, "Three machines for one program: GPUs, simulated devices, virtual GPUs")
    p.box(8, 8, 424, 34, "your program")
    columns = [
        "GPUs|paper|device cuda:0|CUDA's torch|CUDA's runtime|the GPU|real time",
        "simulated|first|device sim:0|any torch|managed._sim|the CPU|virtual time",
        "virtual GPU|second|device cuda:0|CUDA's torch|another runtime|the CPU|no time",
    ]
    for n, column in enumerate(columns):
        title, colour, *rows = column.split("|")
        x = 8 + n * 145
        p.arrow((x + 67, 42), (x + 67, 62))
        p.text(x + 67, 76, title, bold=True)
        for row, words in enumerate(rows):
            p.box(x, 92 + row * 48, 134, 40, words, colour)
    told = "Simulated devices count bytes and time;\nvirtual GPUs check the order of streams."
    p.text(220, 346, told, "soft", size=12)
    return p


def pictures() -> Iterator[tuple[str, str]]:
    """Names of files and what they hold."""
    for number, make in enumerate((call, meet, plan, home, pretend), start=1):
        for scheme in COLOURS:
            yield f"how_{number}_{make.__name__}_{scheme}.svg", make().draw(scheme)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img")
    for name, drawn in pictures():
        (folder / name).write_text(drawn)
