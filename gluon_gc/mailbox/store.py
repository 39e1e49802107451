"""The objects of a run, in a folder or in a bucket of S3, Google Cloud Storage or Azure.

No other module imports obstore.
"""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, NamedTuple
from urllib.parse import unquote, urlsplit

from .. import env

try:
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError
    from obstore.store import LocalStore, from_url
except ImportError as error:
    obstore, _missing = None, error

_FORMS = "a path, file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
_SLOWEST = 125_000  # bytes/s, the speed of a link of 1 Mbit/s
_RETRY_SECONDS = 2.0  # obstore's own retries begin within this time, because callers retry too


def transfer_seconds(size: int) -> float:
    """The seconds that an upload or a download of this many bytes may last."""
    return size / _SLOWEST


class StoreError(ConnectionError):
    """The store has refused an operation, or did not answer."""


class ConflictError(StoreError):
    """Another request for the same object had not ended. The object may not exist."""


class AwayError(StoreError):
    """An object that nobody removes is missing: a folder may be away, as while it is unmounted."""


class Entry(NamedTuple):
    """An object in a listing."""

    name: str
    size: int  # bytes
    modified: datetime  # by the store's clock


class Store:
    """The objects below a URL (`_FORMS`), by name. Several threads may call its methods.

    obstore reads the credentials of a bucket, and the address of a server that is like S3, from
    AWS_*, GOOGLE_* or AZURE_* variables. If AWS_ACCESS_KEY_ID is not set and boto3 is installed,
    boto3 finds the credentials.

    All methods raise StoreError if the store fails, or if a request and its retries have no answer
    after `timeout` seconds. An upload gets more time: at least 1 s for each 125 kB. A folder has no
    time-out.
    """

    url: str  # without a slash at its end
    kept: str | None = None
    """An object that nobody removes. Where it is missing in a folder, all methods raise AwayError,
    because the folder is away: what is written there would not be in the store."""

    def __init__(self, url: str, timeout: float = 30.0, creates: bool = True) -> None:
        if obstore is None:
            message = f"mailbox needs obstore: pip install 'gluon_gc[mailbox]' ({_missing})"
            raise ImportError(message) from _missing
        self.url, self._folder = _parsed(url)
        self._timeout = timeout
        if self._folder and not creates and not os.path.isdir(self._folder):
            raise StoreError(f"{self.url}: the folder does not exist")
        self._clients: dict[float, Any] = {}
        if self.url.startswith("s3:"):
            env.require_url_of_s3()
        self._credentials = _boto3_credentials() if self.url.startswith("s3:") else None
        try:
            self._client()
        except (BaseError, ValueError) as error:
            raise ValueError(f"{self.url}: {_reason(error)}") from None
        except OSError as error:
            raise StoreError(f"{self.url}: {error}") from None

    def put(self, name: str, data: Any, create: bool = False) -> bool:
        """Write an object. Readers see either all of it or nothing.

        With `create`, an object that exists already stays, and the answer is False. It may be from
        this same call: obstore repeats a request if its answer was lost. After a StoreError, the
        object may exist too.
        """
        view = memoryview(data)
        content = view.cast("B") if view.nbytes else b""
        mode = "create" if create else "overwrite"
        with self._errors("put", name):
            self._require_folder()
            client = self._client(view.nbytes)
            try:
                obstore.put(client, name, content, mode=mode, use_multipart=False)
                self._require_folder()  # it may have gone meanwhile
            except AlreadyExistsError as error:
                if not create or _is_conflict(error):
                    raise
                return False
        return True

    def get(self, name: str) -> bytes | None:
        """Read an object. Return None if it does not exist."""

        def read() -> bytes | None:
            try:
                return obstore.get(self._client(), name).bytes().to_bytes()
            except FileNotFoundError:
                return None

        with self._errors("get", name):
            return self._unless_away(read)

    def get_kept(self, name: str) -> bytes:
        """Read an object that nobody removes. AwayError if it is missing."""
        data = self.get(name)
        if data is None:
            raise self._away(name)
        return data

    def list(self, prefix: str) -> list[Entry]:
        """Return all objects in a folder such as "a/b/" and in its sub-folders, sorted by name."""
        with self._errors("list", prefix):
            client, path = self._client(), prefix or None
            found = self._unless_away(lambda: obstore.list(client, path).collect())
        return sorted(Entry(each["path"], each["size"], each["last_modified"]) for each in found)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the direct sub-folders of a folder, sorted."""
        with self._errors("list", prefix):
            client, path = self._client(), prefix or None
            found = self._unless_away(
                lambda: obstore.list_with_delimiter(client, path)["common_prefixes"]
            )
        return sorted(path.rpartition("/")[2] for path in found)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects. Objects that do not exist are ignored."""
        names = [*names]
        if not names:
            return
        with self._errors("delete", ", ".join(names[:3] + ["..."] * (len(names) > 3))):
            try:
                obstore.delete(self._client(), names)
            except FileNotFoundError:  # the objects behind it may still exist
                for name in names:
                    with suppress(FileNotFoundError):
                        obstore.delete(self._client(), name)

    def delete_partial(self, prefix: str, seconds: float) -> None:
        """Delete what killed writers have left in a folder, if it is older than this.

        obstore's lists leave these files out. Buckets have none.
        """
        oldest = time.time() - seconds
        for folder, _, names in os.walk(f"{self._folder}/{prefix}") if self._folder else ():
            for path in (Path(folder, name) for name in names if re.search(r"#\d+$", name)):
                with self._errors("delete", path.name), suppress(FileNotFoundError):
                    if path.stat().st_mtime < oldest:
                        path.unlink()

    def require_create(self, worker: str) -> None:
        """Raise ValueError unless the store can create an object only if it does not exist yet.

        The probe is the object "probe-WORKER".
        """
        probe, problem = f"probe-{worker}", None
        try:
            self.put(probe, b"first", create=True)
            if self.put(probe, b"second", create=True):
                problem = "it has replaced an object that existed"
        except StoreError as error:
            if not re.search("not ?(yet )?implemented", str(error), re.IGNORECASE):
                raise
            problem = str(error)
        self.delete([probe])
        if problem:
            bucket = urlsplit(self.url).netloc or self._folder
            raise ValueError(
                f"{self.url}: '{bucket}' cannot create an object only if it is absent, which a "
                f"mailbox needs: {problem}"
            )

    def _unless_away(self, read: Callable[[], Any]) -> Any:
        """Return the result of `read`. If it is empty, the folder was there before and after."""
        found = read()
        if not found and self._folder and self.kept:
            self._require_folder()
            found = read()  # the folder may have come back after the first time
            if not found:
                self._require_folder()
        return found

    def _require_folder(self) -> None:
        if self._folder and self.kept and not os.path.exists(f"{self._folder}/{self.kept}"):
            raise self._away(self.kept)

    def _away(self, name: str) -> AwayError:
        return AwayError(f"{self.url}: object '{name}' is missing")

    def _client(self, upload: int = 0) -> Any:
        """The client for uploads of at most this many bytes."""
        needed = 1 + transfer_seconds(upload) / self._timeout
        seconds = self._timeout * 2 ** math.ceil(math.log2(needed))
        if seconds not in self._clients:
            self._clients[seconds] = self._opened(seconds)
        return self._clients[seconds]

    def _opened(self, seconds: float) -> Any:
        if self._folder:
            os.makedirs(self._folder, exist_ok=True)
            return LocalStore(self._folder, automatic_cleanup=True)
        retrying = min(_RETRY_SECONDS, self._timeout / 4)  # its last request may begin then
        silence = timedelta(seconds=seconds - retrying)
        pauses = {"init_backoff": retrying / 20, "max_backoff": retrying / 4}
        options = {
            "client_options": {
                "allow_http": True,  # only for an http:// address in the user's own variables
                "connect_timeout": min(silence, timedelta(seconds=5)),
                "read_timeout": silence,
                "timeout": timedelta(days=1),  # a large download may last, while it goes on
            },
            "retry_config": {
                "max_retries": 3,
                "retry_timeout": timedelta(seconds=retrying / 2),
                "backoff": {key: timedelta(seconds=pause) for key, pause in pauses.items()},
            },
        }
        if self._credentials:
            options["credential_provider"] = self._credentials
        return from_url(self.url, **options)

    @contextmanager
    def _errors(self, operation: str, name: str) -> Iterator[None]:
        """Raise the errors of obstore as StoreError."""
        try:
            yield
        except StoreError:
            raise
        except (BaseError, OSError, NotImplementedError) as error:
            message = f"{self.url}: cannot {operation} '{name}': {_reason(error)}"
            raise (ConflictError if _is_conflict(error) else StoreError)(message) from None


def _is_conflict(error: Exception) -> bool:
    """Whether this is S3's answer while another request for the object has not ended."""
    return "ConditionalRequestConflict" in str(error)


def _parsed(url: str) -> tuple[str, str | None]:
    """The URL in its normal form, and the path of its folder. Refuse a wrong URL."""
    scheme, _, rest = url.partition("://")
    if url and not re.match(r"\w+:", url):
        folder = os.path.abspath(os.path.expanduser(url))
    elif scheme == "file" and rest.startswith("/"):
        folder = unquote(rest)
    else:
        path = rest.partition("/")[0]
        if scheme not in ("s3", "gs", "az") or not path or re.search("[@:?#]", rest):
            raise ValueError(f"mailbox must be {_FORMS}, got '{_without_secrets(url)}'")
        return url.rstrip("/"), None
    return Path(folder).as_uri(), folder


def _boto3_credentials() -> Any:
    """What gives obstore the credentials that boto3 finds. None: obstore finds them itself."""
    if env.has_aws_key():
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    try:
        return Boto3CredentialProvider()
    except ValueError:  # boto3 finds none
        return None


def _reason(error: Exception) -> str:
    """The first line of an error of obstore, and the message deeper in it."""
    text = str(error)
    if "169.254.169.254" in text:  # where a machine of the cloud would find its credentials
        return "no credentials were found; for S3, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    line = re.split(r"\n|<\?xml|\{$", text, flags=re.MULTILINE)[0].strip(" :")
    inner = re.findall(r'<Message>(.*?)</Message>|(?:message|error)"?: "(.*?)"|(TimedOut)', text)
    detail = next((part for part in inner[0] if part), "") if inner else ""
    return _without_secrets(f"{line} ({detail})" if detail and detail not in line else line)


def _without_secrets(text: str) -> str:
    """A text whose URLs have no users, passwords and queries."""
    return re.sub(r"//[^/\s]*@", "//", re.sub(r"\?\S*", "", text))
