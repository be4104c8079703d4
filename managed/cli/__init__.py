"""What a terminal can ask: `managed COMMAND`, which is `python -m managed COMMAND`.

Each command is a module of this package with two functions: `describe(parser)` adds its arguments,
`run(options)` does it and returns the exit status. A module is imported when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

# Each command and its line in the help.
COMMANDS: dict[str, str] = {
    "doctor": "what this machine has, and what will not work: text for an issue",
    "plan": "what a script needs, and what fits where, before there is a card for it",
    "run": "a script, a module or a notebook, managed without a changed line",
    "status": "one line a device of each running process",
    "top": "whose bytes are on which device of running processes, and what moves",
    "trace": "what a profile says: bytes a link, what waited longest, and what helps",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; `arguments` are those of the command line unless given.

    Returns the exit status. Raises SystemExit where argparse ends a program: for `--help`, and
    with status 2 for unknown arguments.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] not in COMMANDS:
        parser = argparse.ArgumentParser(
            prog="managed", description="Tensors that know where to be."
        )
        commands = parser.add_subparsers(required=True, metavar="COMMAND")
        for name, line in COMMANDS.items():
            commands.add_parser(name, help=line)
        parser.parse_args(given)  # it ends the program: no command has this name
    name, *rest = given
    module = importlib.import_module(f"managed.cli.{name}")
    command = argparse.ArgumentParser(prog=f"managed {name}", description=COMMANDS[name])
    module.describe(command)
    options = command.parse_args(rest)
    try:
        return int(module.run(options))
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
