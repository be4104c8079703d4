"""What a sweep found, per operator, and how it becomes a test result and a table."""

import re
from dataclasses import asdict, dataclass, field


@dataclass
class Outcome:
    """One operator (or module, or model) of a sweep.

    `refused` are samples that plain torch on the CPU does not run either; `forward` and
    `backward` are failures, each with its sample and its reason.
    """

    operator: str
    kind: str
    samples: int = 0
    mixed: int = 0
    differentiated: int = 0
    refused: list = field(default_factory=list)
    forward: list = field(default_factory=list)
    backward: list = field(default_factory=list)

    def failures(self):
        found = [("forward", text) for text in self.forward]
        found += [("backward", text) for text in self.backward]
        return [f"{self.operator} ({self.kind}) {way}: {text}" for way, text in found]


def settle(outcomes, known):
    """Divides failures into (unexpected, texts of expected ones) and finds idle operators.

    `known` maps an operator to what is known of it; an entry that nothing needs is a failure too,
    so that the list cannot outlive its reasons. An operator of which nothing ran is a failure
    unless torch refused every sample.
    """
    wrong, expected = [], []
    for outcome in outcomes:
        entry = _entry(outcome, known)
        excused = [text for text in outcome.failures() if entry and re.search(entry.pattern, text)]
        wrong += [text for text in outcome.failures() if text not in excused]
        if excused:
            expected.append(f"{outcome.operator} ({outcome.kind}): {entry.reason}")
        elif entry and entry.always and outcome.samples:
            wrong.append(f"{outcome.operator} ({outcome.kind}) passes; known as: {entry.reason}")
        if not outcome.samples and not outcome.refused:
            wrong.append(f"{outcome.operator} ({outcome.kind}): nothing ran")
    return wrong, expected


def _entry(outcome, known):
    entry = known.get(outcome.operator)
    return None if entry and entry.dtypes and outcome.kind not in entry.dtypes else entry


def counts(outcomes):
    """The figures of a sweep; forward and backward count operators, not samples."""
    ran = [o for o in outcomes if o.samples]
    back = [o for o in ran if o.differentiated]
    return {
        "operators": len(outcomes),
        "ran": len(ran),
        "not applicable": len(outcomes) - len(ran),
        "forward equal": sum(not o.forward for o in ran),
        "forward failed": sum(bool(o.forward) for o in ran),
        "backward equal": sum(not o.backward for o in back),
        "backward failed": sum(bool(o.backward) for o in back),
        "samples": sum(o.samples for o in outcomes),
        "mixed": sum(o.mixed for o in outcomes),
        "refused samples": sum(len(o.refused) for o in outcomes),
    }


def as_property(sweep, outcomes, chunk, chunks, expected):
    """A test's share of a sweep as plain data that survives xdist."""
    return {
        "sweep": sweep,
        "chunk": chunk,
        "chunks": chunks,
        "expected": expected,
        "outcomes": [asdict(o) for o in outcomes],
    }


def from_property(data):
    return [Outcome(**o) for o in data["outcomes"]]
