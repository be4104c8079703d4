"""The fenced blocks of pages in Markdown."""

import re

__all__ = ["FENCE", "blocks"]

FENCE = re.compile(r"^([ ]*)```(\w*)[^\n]*\n(.*?)^\1```[ ]*$", re.M | re.S)


def blocks(page, language):
    """Each fenced block with the line where it stands, so that tracebacks name the page's line."""
    text = page.read_text()
    for indent, tongue, body in FENCE.findall(text):
        if tongue == language:
            line = text[: text.index(body)].count("\n")
            yield line, "".join(s.removeprefix(indent) for s in body.splitlines(keepends=True))
