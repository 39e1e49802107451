"""The console script bpslaunch: runs gluon_gc.launch.launcher without running gluon_gc/__init__.py.

The package imports MXNet, which takes seconds and, where DMLC_ROLE is server, never returns.
"""

import importlib.util
import sys


def main() -> int:
    """Run the launcher on the command line's arguments; returns the exit code."""
    spec = importlib.util.find_spec("gluon_gc")
    if spec is None:
        sys.exit("bpslaunch: gluon_gc is not installed")
    sys.modules["gluon_gc"] = importlib.util.module_from_spec(spec)
    from gluon_gc.launch.launcher import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # with -m the current directory
    sys.exit(main())
