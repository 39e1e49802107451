"""Fixtures with stores: a server of S3, a bucket in it, and a proxy before it."""

import os

import pytest

from .stores import Proxy, S3Server, variables


@pytest.fixture(scope="session")
def s3_server():
    """Return a server of S3, one for all tests of this process."""
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def aws(monkeypatch):
    """Return a function that directs S3's clients of this process to a port."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)

    def direct(port):
        for name, text in variables(port).items():
            monkeypatch.setenv(name, text)

    return direct


@pytest.fixture
def bucket(s3_server, aws):
    """Return the URL of a folder in a new bucket."""
    aws(s3_server.port)
    return f"s3://{s3_server.new_bucket()}/runs/first"


@pytest.fixture
def proxy(s3_server, bucket, aws):
    """Return a proxy, through which the clients of `bucket` reach the server from now on."""
    proxy = Proxy(s3_server.port)
    aws(proxy.port)
    yield proxy
    proxy.stop()


@pytest.fixture(params=["folder", "s3"])
def url(request, tmp_path):
    """Return the URL of an empty store, of each kind that tests have."""
    if request.param == "folder":
        return (tmp_path / "run").as_uri()
    return request.getfixturevalue("bucket")
