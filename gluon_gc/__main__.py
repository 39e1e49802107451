"""python -m gluon_gc: check finds faults of an installation; plan predicts speed-ups."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Sequence

from .check import ERROR, Finding, installation, machine, network, variables
from .launch.cli.output import print_line
from .plan import arguments as plan

_PARTS = (installation, machine, network, variables)
_MARKS = {"good": "  ", "warning": "! ", "error": "X "}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the command line names. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gluon_gc", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    check = commands.add_parser(
        "check",
        help="check the installation, this machine, its network, and the variables",
        description="Prints a line for each part: good, ! a warning, or X an error, with its "
        "remedy. The exit code is 1 if there is an error.",
        allow_abbrev=False,
    )
    check.add_argument("--json", action="store_true", help="print a JSON object in each line")
    check.set_defaults(run=_check)
    plan.add(commands)
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(words)
    options.arguments = words
    return options.run(options)


def _check(options: argparse.Namespace) -> int:
    found = []
    for part in _PARTS:
        for finding in part.findings():
            found.append(finding)
            print_line(json.dumps(vars(finding)) if options.json else _text(finding))
    return int(any(finding.level == ERROR for finding in found))


def _text(finding: Finding) -> str:
    remedy = f"\n{'':24}  -> {finding.remedy}" if finding.remedy else ""
    return f"{_MARKS[finding.level]}{finding.about:22}  {finding.text}{remedy}"


if __name__ == "__main__":
    sys.exit(main())
