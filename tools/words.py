"""Counts words and sentences that technical English does without.

    python tools/words.py [FILE ...]             lists them, in all texts by default
    python tools/words.py --base REVISION        exits with 1 if there are more than there

Texts are the comments of csrc and the pages of README.md and docs. Code is no person in them:
*who*, *whoever*, *somebody*, *nobody* and *others* stand for threads, callers and copies that have
names. And a sentence has a verb: one that begins with "Of", "As" or "The same" often has none. A
file of CLEAN has no finding: with --base one makes the exit status 1.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("csrc", "docs", "README.md")
CLEAN = re.compile(r"README\.md|docs/(index|quickstart|concepts|memory)\.md|csrc/.*\.h", re.ASCII)
PERSONS = re.compile(r"\b(who|whom|whoever|(some|no|any|every)body|others)\b", re.I)
NO_VERB = re.compile(r"(?:Of|As|The same)\b")
VERB = re.compile(
    r"\b(is|are|was|were|be|been|has|have|had|do|does|did|can|could|may|might|must|will|would|shall"
    r"|should|\w+(?:s|ed))\b"
)
# A quote behind a digit separates digits.
COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|(?<![0-9])\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S
)
CODE = re.compile(r"```.*?^```|`[^`\n]*`", re.S | re.M)


def blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def prose(name: str, text: str) -> str:
    """What is said in a text, line for line: comments of C, a page without its code."""
    if name.endswith(".md"):
        return CODE.sub(blank, text)
    kept, end = [], 0
    for m in COMMENT.finditer(text):
        kept.append(re.sub(r"[^\n]", " ", text[end : m.start()]))
        said = re.sub(r"^(\s*)(//|/\*| \*/?|\*)", lambda s: " " * len(s[0]), m[0], flags=re.M)
        kept.append(said.replace("*/", "  ") if m[0][0] == "/" else blank(m))
        end = m.end()
    return "".join(kept)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """(position, text) of each sentence: up to a full stop, a colon's end of line, or a gap."""
    for m in re.finditer(r"[A-Z][^.;|]*?(?:[.;|](?=\s)|\n[ \t]*\n|\Z)", text, re.S):
        yield m.start(), " ".join(m[0].split())


def found(name: str, text: str) -> Iterator[tuple[int, str]]:
    """(line, what) of each finding."""
    said = prose(name, text)
    for m in PERSONS.finditer(said):
        yield said.count("\n", 0, m.start()) + 1, m[0]
    for at, sentence in sentences(said):
        if NO_VERB.match(sentence) and not VERB.search(sentence):
            yield said.count("\n", 0, at) + 1, sentence[:60]


def is_text(name: str) -> bool:
    return name.endswith((".c", ".cpp", ".h", ".md"))


def count_at(revision: str) -> int:
    """The findings in the texts of a revision."""
    archive = subprocess.run(
        ["git", "archive", revision, *PLACES], cwd=ROOT, check=True, capture_output=True
    ).stdout
    total = 0
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            file = tar.extractfile(member) if is_text(member.name) else None
            if file:
                total += sum(1 for _ in found(member.name, file.read().decode()))
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", metavar="REVISION")
    parser.add_argument("files", nargs="*", metavar="FILE")
    asked = parser.parse_args()
    listed = subprocess.run(
        ["git", "ls-files", *PLACES], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    names = asked.files or [n for n in listed if is_text(n) and (ROOT / n).is_file()]
    total, wrong = 0, 0
    for name in names:
        here = list(found(name, (ROOT / name).read_text()))
        total += len(here)
        clean = CLEAN.fullmatch(name)
        wrong += len(here) if clean else 0
        if not asked.base or clean:
            print(
                *(f"{name}:{line}: {what}" for line, what in sorted(here)),
                sep="\n",
                end="\n" if here else "",
            )
    if asked.base and total > (before := count_at(asked.base)):
        print(f"words.py: {total} findings, {before} at {asked.base}; without --base it lists them")
        return 1
    return int(wrong > 0 and bool(asked.base))


if __name__ == "__main__":
    sys.exit(main())
