"""Network namespaces for tests: whether they can be created, and which exist."""

import os
import shutil
import subprocess

import pytest


def namespaces():
    """Return the list of existing namespaces."""
    return subprocess.run(["ip", "netns"], capture_output=True, encoding="utf-8", check=True).stdout


def _allowed():
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"gctest{os.getpid()}"
    created = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if created:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    return created


needs_namespaces = pytest.mark.skipif(
    not _allowed(), reason="network namespaces need root, and ip and tc of iproute2"
)
