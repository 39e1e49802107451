"""The console script bpslaunch: runs gluon_gc.launcher without running gluon_gc/__init__.py.

The package imports MXNet, which takes seconds and, where DMLC_ROLE is server, never returns.
"""

import importlib.util
import sys


def main() -> int:
    """Run the launcher on the command line's arguments; returns the exit code."""
    sys.modules["gluon_gc"] = importlib.util.module_from_spec(importlib.util.find_spec("gluon_gc"))
    from gluon_gc.launcher import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
