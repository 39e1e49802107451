"""Store, over a folder and over moto's S3: its operations, races, failures and errors."""

import base64
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from gluon_gc.mailbox.store import AwayError, Store, StoreError
from tests.processes import clean_environ

from .stores import Message, refusal

ROOT = Path(__file__).resolve().parents[3]


def test_without_obstore_the_error_says_how_to_install_it():
    code = (
        "import sys\nsys.modules['obstore'] = None\nimport gluon_gc.mailbox\n"
        "from gluon_gc.mailbox.store import Store\n"
        "try:\n    Store('run')\nexcept ImportError as error:\n    print(error)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environ(), capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'gluon_gc[mailbox]'" in done.stdout


pytest.importorskip("obstore")


# Operations


def test_an_object_is_read_as_it_was_written(url):
    store = Store(url)
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    contents = {"job": b"bytes", "a/b/one": bytearray(b"array"), "a/b/two": memoryview(array)}
    contents["empty"] = np.empty((0, 3))
    for name, data in contents.items():
        assert store.put(name, data) is True
    for name, data in contents.items():
        assert store.get(name) == memoryview(data).tobytes()
    assert store.put("job", b"other") is True
    assert store.get("job") == b"other"


def test_a_large_object_is_written_with_one_request_so_that_a_crash_leaves_no_parts(bucket, proxy):
    data = np.random.default_rng(0).bytes(12_000_000)
    assert Store(bucket).put("large", data) and len(proxy.requests) == 1
    assert Store(bucket).get("large") == data


def test_an_object_that_does_not_exist_is_none(url):
    store = Store(url)
    store.put("a/b", b"1")
    assert store.get("c") is None and store.get("a") is None and store.get("a/c") is None


def test_listings_have_all_objects_of_a_folder_in_order(url):
    store = Store(url)
    assert store.list("a/") == [] and store.folders("a/") == [] and store.list("") == []
    before = datetime.now(timezone.utc) - timedelta(seconds=2)  # S3 has whole seconds
    names = ["a/10/x", "a/9/y/one", "a/9/y/host 1#é%", "a", "ab/1", "a/2"]
    for name in names if url.startswith("s3") else names[:3] + names[4:]:
        store.put(name, name.encode())
    entries = store.list("a/")
    assert [entry.name for entry in entries] == ["a/10/x", "a/2", "a/9/y/host 1#é%", "a/9/y/one"]
    assert [store.get(entry.name) for entry in entries] == [each.name.encode() for each in entries]
    assert [entry.size for entry in entries] == [len(each.name.encode()) for each in entries]
    after = datetime.now(timezone.utc) + timedelta(seconds=1)
    assert all(before <= entry.modified <= after for entry in entries)
    assert store.folders("a/") == ["10", "9"] and store.folders("") == ["a", "ab"]
    assert [entry.name for entry in Store(f"{url}/ab/").list("")] == ["1"]


def test_listings_have_more_objects_than_one_answer(bucket):
    store = Store(bucket)
    names = [f"many/{number:04}" for number in range(1001)]
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda name: store.put(name, b"1"), names))
    assert [entry.name for entry in store.list("many/")] == names
    store.delete(names)
    assert store.list("") == []


def test_deleting_ignores_missing_objects_and_removes_empty_folders(url):
    store = Store(url)
    names = [f"a/b/{number}" for number in range(30)]
    store.put("a/c", b"stays")
    for name in names:
        store.put(name, b"1")
    store.delete([])
    store.delete(["missing", *names, "a/missing"])
    assert [entry.name for entry in store.list("")] == ["a/c"] and store.folders("a/") == []
    store.delete(iter(["a/c"]))
    store.delete(["a/c"])
    assert store.folders("") == []
    assert store.put("a/b/1", b"again")


# Create if absent


def test_creating_keeps_an_object_that_exists(url):
    store = Store(url)
    assert store.put("a/result", b"first", create=True) is True
    assert store.put("a/result", b"second", create=True) is False
    assert store.put("a/result", b"", create=True) is False
    assert Store(url).get("a/result") == b"first"


def test_one_of_several_threads_creates_each_object(url):
    stores = [Store(url) for _ in range(4)]
    barrier = threading.Barrier(len(stores))

    def race(number):
        won = []
        for name in range(15):
            barrier.wait(60)
            won.append(stores[number].put(f"rounds/{name}/result", b"%d" % number, create=True))
        return won

    with ThreadPoolExecutor(len(stores)) as threads:
        won = list(threads.map(race, range(len(stores))))
    for name in range(15):
        winners = [number for number in range(len(stores)) if won[number][name]]
        assert [b"%d" % number for number in winners] == [stores[0].get(f"rounds/{name}/result")]


def test_a_repeated_request_does_not_overwrite_and_says_that_the_object_exists(bucket, proxy):
    lost = []

    def lose_first(request, answer):
        if request.method == "PUT" and not lost:
            lost.append(request.path)
            return Message({}, b"")
        return answer

    proxy.after = lose_first
    store = Store(bucket)
    assert store.put("result", b"first", create=True) is False
    assert len(proxy.requests) == 2 and store.get("result") == b"first"


def test_a_conflict_of_two_requests_is_an_error_because_the_object_may_not_exist(bucket, proxy):
    proxy.change = lambda request: refusal(409, "ConditionalRequestConflict")
    with pytest.raises(StoreError, match="409 Conflict"):
        Store(bucket).put("result", b"1", create=True)
    # Azure's answer for an object that exists
    proxy.change = lambda request: refusal(409, "BlobAlreadyExists")
    assert Store(bucket).put("result", b"1", create=True) is False


def test_a_store_that_creates_only_if_absent_is_accepted(url):
    store = Store(url)
    store.require_create("worker-1")
    store.require_create("worker-1")
    assert store.list("") == []


def test_a_bucket_that_ignores_the_condition_is_refused_by_name(bucket, proxy):
    conditions = []

    def ignore(request):
        if request.method == "PUT":
            conditions.append(request.headers.pop("if-none-match"))

    proxy.change = ignore
    name = bucket.split("/")[2]
    with pytest.raises(ValueError, match=f"'{name}' cannot create an object only if it is absent"):
        Store(bucket).require_create("w")
    assert conditions == ["*", "*"] and Store(bucket).list("") == []


def test_a_bucket_that_does_not_implement_the_condition_is_refused(bucket, proxy, monkeypatch):
    message = "A header you provided implies functionality that is not implemented"
    proxy.change = lambda request: (
        refusal(501, "NotImplemented", message) if request.method == "PUT" else None
    )
    with pytest.raises(ValueError, match=f"bucket-.*only if it is absent.*{message}"):
        Store(bucket).require_create("w")
    proxy.change = lambda request: None
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(ValueError, match="bucket-.*only if it is absent"):
        Store(bucket).require_create("w")


def test_a_failing_store_is_not_taken_for_one_without_the_condition(bucket, proxy):
    proxy.change = lambda request: refusal(403, "AccessDenied", "Access Denied")
    with pytest.raises(StoreError, match="cannot put 'probe-w': .*Access Denied"):
        Store(bucket).require_create("w")


# Half objects

KILLED = """
import resource, signal, sys
from gluon_gc.mailbox.store import Store
store = Store(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
store.put("a/result", bytes(2**22), create=sys.argv[2] == "create")
"""


@pytest.mark.parametrize("mode", ["create", "overwrite"])
def test_a_process_killed_while_it_writes_leaves_no_object(tmp_path, mode):
    command = [sys.executable, "-c", KILLED, str(tmp_path), mode]
    died = subprocess.run(command, cwd=ROOT, env=clean_environ(), capture_output=True)
    assert died.returncode == -signal.SIGXFSZ, died.stderr
    half = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in half] == [2**20]
    store = Store(str(tmp_path))
    assert store.list("") == [] and store.get("a/result") is None
    assert store.put("a/result", b"whole", create=True) is True
    assert [entry.size for entry in store.list("")] == [5]


def test_a_full_disk_leaves_the_old_object(tmp_path):
    store = Store(str(tmp_path))
    store.put("a", b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(StoreError, match="cannot put 'a': .*File too large"):
            store.put("a", bytes(2**22))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.get("a") == b"old" and [entry.size for entry in store.list("")] == [3]


def test_readers_of_a_folder_see_whole_objects_only(tmp_path):
    store, ended = Store(str(tmp_path)), threading.Event()
    store.put("a/x", bytes(2**20))
    sizes = set()

    def read():
        while not ended.is_set():
            sizes.add(len(store.get("a/x")))
            sizes.update(entry.size for entry in store.list("a/"))

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        try:
            for number in range(1, 50):
                store.put("a/x", bytes([number]) * (2**20 + number))
        finally:
            ended.set()
        reading.result()
    assert sizes and sizes <= {2**20 + number for number in range(50)}


def test_a_body_that_is_cut_short_is_an_error(bucket, proxy):
    store = Store(bucket)
    store.put("a", b"whole object")

    def cut(request, answer):
        if request.method == "GET":
            answer.headers["Content-Length"] = "12"
            answer.body = answer.body[:5]
        return answer

    proxy.after = cut
    with pytest.raises(StoreError, match="cannot get 'a'"):
        store.get("a")


# URLs


def test_a_missing_folder_is_created_by_path_and_by_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for number, url in enumerate(
        ["a/b c#%20", f"file://{tmp_path}/x/y", str(tmp_path / "z"), "there", f"{tmp_path}/w/"]
    ):
        store = Store(url)
        assert store.put("job", b"%d" % number, create=True)
    assert (tmp_path / "a" / "b c#%20" / "job").read_bytes() == b"0"
    assert (tmp_path / "x" / "y" / "job").exists() and (tmp_path / "there" / "job").exists()
    assert Store("a/b c#%20").url == (tmp_path / "a" / "b c#%20").as_uri()
    assert Store(Store("a/b c#%20").url).get("job") == b"0"
    assert Store(f"file://{tmp_path}/w/").url == f"file://{tmp_path}/w"


@pytest.mark.parametrize(
    "read, expected",
    [
        (lambda store: store.get("a/b"), b"1"),
        (lambda store: [entry.name for entry in store.list("a/")], ["a/b"]),
        (lambda store: store.folders(""), ["a"]),
    ],
    ids=["get", "list", "folders"],
)
def test_what_is_in_a_folder_that_comes_back_during_a_request_is_found(
    tmp_path, monkeypatch, read, expected
):
    folder, away = tmp_path / "run", tmp_path / "away"
    store = Store(str(folder))
    for name, data in (("job", b"0"), ("a/b", b"1")):
        store.put(name, data)
    store.kept = "job"
    folder.rename(away)
    with pytest.raises(AwayError, match="object 'job' is missing"):
        read(store)
    exists = os.path.exists

    def comes_back(path):
        if away.is_dir():
            away.rename(folder)
        return exists(path)

    monkeypatch.setattr(os.path, "exists", comes_back)
    assert read(store) == expected


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for url in (f"{tmp_path}/file", f"{tmp_path}/file/below"):
        with pytest.raises(StoreError, match=f"^file://{tmp_path}/file"):
            Store(url)


@pytest.mark.parametrize(
    "url",
    ["", "s3://", "s3:///prefix", "gs://", "az://", "ftp://host/x", "file://host/x", "file://"]
    + ["s3:/bucket/x", "memory:///", "https://host/x", "S3://bucket/x", "s3://host:9000/bucket"]
    + ["s3://bucket/x?region=eu", "s3://bucket/x#y"],
)
def test_a_bad_url_is_refused_with_the_forms_that_are_allowed(url):
    with pytest.raises(ValueError) as refused:
        Store(url)
    forms = "a path, file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/"
    assert str(refused.value).startswith(f"mailbox must be {forms}")
    assert f"got '{url.split('?')[0]}'" in str(refused.value)


def test_a_url_with_a_password_is_refused_without_showing_it():
    with pytest.raises(ValueError, match="got 's3://bucket/x'") as refused:
        Store("s3://user:secret-1@bucket/x?sig=secret-2")
    assert "secret" not in str(refused.value)


def test_a_double_slash_and_a_missing_account_are_refused(bucket, monkeypatch):
    with pytest.raises(ValueError, match="s3://bucket//x: .*empty path segment"):
        Store("s3://bucket//x")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ValueError, match="az://container: .*Account must be specified"):
        Store("az://container")


def test_slashes_at_the_end_of_a_url_do_not_matter(bucket):
    Store(f"{bucket}/").put("a", b"1")
    assert Store(f"{bucket}//").url == bucket and Store(bucket).get("a") == b"1"


# Failures


def others(port, monkeypatch, tmp_path):
    """Direct the clients of Google Cloud Storage and Azure to a port."""
    account = {"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True}
    account.update(client_email="a@b", private_key="secret", private_key_id="1")
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"secret").decode())
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{port}")


def operations(store):
    """Return each operation of a store, with the text that its errors must have."""
    return {
        "put 'a/b'": lambda: store.put("a/b", b"1"),
        "put 'a/c'": lambda: store.put("a/c", b"1", create=True),
        "get 'a/b'": lambda: store.get("a/b"),
        "list 'a/'": lambda: store.list("a/"),
        "list 'f/'": lambda: store.folders("f/"),
        "delete 'x, y'": lambda: store.delete(["x", "y"]),
    }


@pytest.mark.parametrize("url", ["s3://b/run", "gs://b/run", "az://b/run"])
def test_a_store_that_never_answers_is_an_error_of_each_operation(url, aws, monkeypatch, tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        aws(silent.getsockname()[1])
        others(silent.getsockname()[1], monkeypatch, tmp_path)
        store = Store(url, timeout=0.5)
        for text, operation in operations(store).items():
            with pytest.raises(StoreError, match=f"^{url}: cannot {text}: .*TimedOut"):
                operation()


@pytest.mark.parametrize("url", ["s3://b/run", "gs://b/run", "az://b/run"])
def test_a_store_that_is_not_there_is_an_error_of_each_operation(url, aws, monkeypatch, tmp_path):
    with socket.socket() as unused:  # bound, but nothing listens
        unused.bind(("127.0.0.1", 0))
        aws(unused.getsockname()[1])
        others(unused.getsockname()[1], monkeypatch, tmp_path)
        store = Store(url, timeout=1)
        for text, operation in operations(store).items():
            with pytest.raises(StoreError, match=f"^{url}: cannot {text}: .*Connection refused"):
                operation()


@pytest.mark.parametrize(
    "status, words",
    [(401, "lacked valid authentication"), (403, "lacked the necessary privileges")]
    + [(400, "400 Bad Request"), (409, "409 Conflict"), (412, "412 Precondition Failed")]
    + [(500, "500 Internal Server Error"), (503, "503 Service Unavailable")],
)
def test_an_error_names_url_operation_object_and_reason(bucket, proxy, status, words):
    proxy.change = lambda request: refusal(status, message="message of the store")
    for text, operation in operations(Store(bucket, timeout=1)).items():
        if status in (409, 412) and text == "put 'a/c'":
            assert operation() is False
            continue
        with pytest.raises(StoreError) as failed:
            operation()
        said = str(failed.value)
        assert said.startswith(f"{bucket}: cannot {text}: ")
        assert words in said or "list" in text or "delete" in text
        assert said.endswith("(message of the store)") and "\n" not in said
        assert "never-shown" not in said and "?" not in said


def test_an_error_of_deleting_many_objects_names_three(bucket, proxy):
    proxy.change = lambda request: refusal(403)
    with pytest.raises(StoreError, match="cannot delete 'a, b, c, ...': "):
        Store(bucket).delete("abcde")


def test_a_missing_bucket_is_an_error_of_writing_and_listing(bucket):
    store = Store("s3://no-such-bucket/run")
    for operation in (lambda: store.put("a", b"1"), lambda: store.list("")):
        with pytest.raises(StoreError, match="The specified bucket does not exist"):
            operation()


def test_a_busy_store_is_asked_again_a_few_times(bucket, proxy):
    answers = [refusal(503), refusal(500)]
    proxy.change = lambda request: answers.pop() if answers else None
    store = Store(bucket)
    assert store.put("a", b"1") and store.get("a") == b"1"
    proxy.change, proxy.requests[:] = lambda request: refusal(503), []
    for operation in (lambda: store.put("a", b"1"), lambda: store.get("a")):
        proxy.requests.clear()
        with pytest.raises(StoreError):
            operation()
        assert 2 <= len(proxy.requests) <= 4


def test_secrets_in_the_address_of_the_server_are_not_shown(aws, monkeypatch):
    aws(9)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:secret@127.0.0.1:1")
    with pytest.raises(StoreError) as failed:
        Store("s3://b/run", timeout=1).list("a/")
    assert "127.0.0.1:1" in str(failed.value) and "secret" not in str(failed.value)


def test_a_large_upload_gets_more_time(bucket, proxy):
    proxy.change = lambda request: time.sleep(0.5)
    store = Store(bucket, timeout=0.2)
    assert store.put("large", bytes(2_000_000)) is True
    with pytest.raises(StoreError, match="TimedOut"):
        store.put("small", b"1")


def test_a_download_may_last_longer_than_the_time_out_while_it_goes_on(bucket, proxy):
    """It takes 3.5 s. After 1.5 s without any byte, it would fail."""
    data = np.random.default_rng(0).bytes(800_000)
    Store(bucket).put("large", data)
    proxy.pause = 0.5
    assert Store(bucket, timeout=2).get("large") == data


# Credentials


@pytest.fixture
def profile(tmp_path, aws, monkeypatch):
    """Set the variables of S3, but with the keys in a profile of AWS's own tools."""
    pytest.importorskip("boto3")

    def write(port):
        aws(port)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        text = "[site]\naws_access_key_id = from-profile\naws_secret_access_key = secret\n"
        (tmp_path / "credentials").write_text(text)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_PROFILE", "site")

    return write


@pytest.fixture
def signatures(proxy):
    """Return a list that gets the Authorization header of each request."""
    found = []
    proxy.change = lambda request: found.append(request.headers.get("authorization", ""))
    return found


def test_keys_of_the_environment_sign_requests(bucket, signatures):
    assert Store(bucket).put("a", b"1")
    assert "Credential=key/" in signatures[0]


def test_boto3_finds_the_keys_of_a_profile(bucket, proxy, signatures, profile):
    profile(proxy.port)
    assert Store(bucket).put("a", b"1")
    assert "Credential=from-profile/" in signatures[0]


def test_keys_of_the_environment_come_before_a_profile(
    bucket, proxy, signatures, profile, monkeypatch
):
    profile(proxy.port)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert Store(bucket).put("a", b"1")
    assert "Credential=from-environment/" in signatures[0]


def test_obstore_goes_on_where_boto3_finds_no_keys(
    bucket, proxy, signatures, profile, monkeypatch, tmp_path
):
    profile(proxy.port)
    (tmp_path / "credentials").write_text("")
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert Store(bucket).put("a", b"1")
    assert signatures == [""]


@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL"])
def test_an_endpoint_without_a_scheme_is_refused_by_name(monkeypatch, name):
    monkeypatch.setenv(name, "127.0.0.1:9000")
    with pytest.raises(ValueError, match=f"{name} must begin with http:// or https://, got '127"):
        Store("s3://bucket/run")


def test_a_path_may_begin_with_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store("~/run").url == (tmp_path / "run").as_uri()
