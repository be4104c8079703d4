"""Pieces of HTML for notebooks: no script, readable on a dark page and on a light one.

Text takes the page's own colour, lines and bars are half transparent or of a middle tone, so the
page need not say whether it is dark. Every text is escaped here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

__all__ = ["bar", "fold", "note", "page", "preformatted", "table"]

_STYLE = """<style>
div.managed{font-size:13px;line-height:1.45;max-width:100%;overflow-x:auto}
div.managed .managed-head{font-weight:600;margin:.2em 0 .4em}
div.managed .managed-note{opacity:.7;margin:.3em 0}
div.managed table{border-collapse:collapse;border:0;margin:.3em 0;color:inherit;font-size:inherit}
div.managed th,div.managed td{border:0;border-bottom:1px solid rgba(128,128,128,.3);
padding:.15em .8em .15em 0;
text-align:left;vertical-align:top;background:transparent;color:inherit;white-space:pre;max-width:none}
div.managed th{font-weight:600;opacity:.7}
div.managed .managed-r{text-align:right}
div.managed .managed-w{white-space:normal;min-width:14em}
div.managed tr{background:transparent}
div.managed pre{background:transparent;color:inherit;margin:.3em 0;padding:0;font-size:12px}
div.managed summary{cursor:pointer;margin:.3em 0}
div.managed .managed-bar{display:flex;width:220px;height:.8em;margin-top:.35em;
background:rgba(128,128,128,.25);border-radius:2px;overflow:hidden}
div.managed .managed-bar i{display:block;height:100%}
</style>"""


class Raw(str):
    """HTML that is ready."""


def _text(cell: object) -> str:
    return cell if isinstance(cell, Raw) else escape(str(cell))


def page(head: str, *parts: str) -> str:
    """A whole output: its first line and what follows."""
    return f'{_STYLE}<div class="managed"><div class="managed-head">{escape(head)}</div>' + (
        "".join(parts) + "</div>"
    )


def note(text: str) -> Raw:
    """A line that explains."""
    return Raw(f'<div class="managed-note">{escape(text)}</div>')


def preformatted(text: str) -> Raw:
    """Text whose spaces and line ends stay."""
    return Raw(f"<pre>{escape(text)}</pre>")


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Iterable[int] = (),
    wide: Iterable[int] = (),
) -> Raw:
    """A table; columns of `right` end at the right, cells of `wide` may break their lines.

    An empty head leaves the line of heads out.
    """
    kinds = dict.fromkeys(right, "managed-r") | dict.fromkeys(wide, "managed-w")
    marks = {i: f' class="{kind}"' for i, kind in kinds.items()}

    def line(tag: str, row: Sequence[object]) -> str:
        cells = (f"<{tag}{marks.get(i, '')}>{_text(c)}</{tag}>" for i, c in enumerate(row))
        return f"<tr>{''.join(cells)}</tr>"

    heads = f"<thead>{line('th', head)}</thead>" if head else ""
    body = "".join(line("td", row) for row in rows)
    return Raw(f"<table>{heads}<tbody>{body}</tbody></table>")


def fold(head: str, inside: str, *, opened: bool = False) -> Raw:
    """What is seen after a click on its head, which needs no script."""
    state = " open" if opened else ""
    return Raw(f"<details{state}><summary>{escape(head)}</summary>{inside}</details>")


def bar(parts: Mapping[str, float], colors: Mapping[str, str], whole: float) -> Raw:
    """A bar of named parts of a whole; what is more than the whole is cut off."""
    pieces, left = [], 100.0
    for name, part in parts.items():
        width = min(left, 100 * part / whole) if whole > 0 else 0.0
        left -= width
        if width > 0:
            style = f"width:{width:.2f}%;background:{colors.get(name, '#888')}"
            pieces.append(f'<i style="{style}" title="{escape(name)}"></i>')
    return Raw(f'<div class="managed-bar">{"".join(pieces)}</div>')
