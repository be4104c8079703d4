"""What the installation of a distribution consists of."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution

from packaging.requirements import Requirement


def needed_by(
    name: str, seen: set[str] | None = None, extras: Iterable[str] = ()
) -> Iterator[Distribution]:
    """A distribution, and all that it requires here, with these extras."""
    seen = set() if seen is None else seen
    seen.add(name)
    distribution = importlib.metadata.distribution(name)
    yield distribution
    for line in distribution.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        wanted = marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras))
        if wanted and requirement.name not in seen:
            yield from needed_by(requirement.name, seen, requirement.extras)
