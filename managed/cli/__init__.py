"""What a terminal can ask: `managed COMMAND`, which is `python -m managed COMMAND`.

Each command is a module of this package with two functions: `describe(parser)` adds its arguments,
`run(options)` does it and returns the exit status. A module is imported when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

# Each command and its line in the help.
COMMANDS: dict[str, str] = {
    "plan": "what a script needs, and what fits where, before there is a card for it",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; `arguments` are those of the command line unless given.

    Returns the exit status. Raises SystemExit where argparse ends a program: for `--help`, and
    with status 2 for arguments that nobody knows.
    """
    parser = argparse.ArgumentParser(prog="managed", description="Tensors that know where to be.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line, add_help=False)
        command.add_argument("rest", nargs=argparse.REMAINDER)
    options, rest = parser.parse_known_args(arguments)
    module = importlib.import_module(f"managed.cli.{options.command}")
    command = argparse.ArgumentParser(
        prog=f"managed {options.command}", description=COMMANDS[options.command]
    )
    module.describe(command)
    return int(module.run(command.parse_args([*options.rest, *rest])))
