"""The command bpslaunch. It runs gluon_gc.launch.cli.launcher without running gluon_gc/__init__.py.

`import gluon_gc` registers an import hook and sets variables for MXNet, which the launcher does not
need.
"""

import importlib.util
import sys


def main() -> int:
    """Run the launcher with the arguments of the command line. Return the exit code."""
    spec = importlib.util.find_spec("gluon_gc")
    if spec is None:
        sys.exit("bpslaunch: gluon_gc is not installed")
    sys.modules["gluon_gc"] = importlib.util.module_from_spec(spec)
    from gluon_gc.launch.cli.launcher import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the current directory, if started with -m
    sys.exit(main())
