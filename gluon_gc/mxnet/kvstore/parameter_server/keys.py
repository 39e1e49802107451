"""Chooses KVStore keys. MXNet's hash of a key decides which server stores it."""

_HASH = 9973  # MXNet sends a key to server (key * 9973) mod servers


class KeyAllocator:
    """Hands out unused KVStore keys for a given server."""

    def __init__(self, num_servers: int) -> None:
        self._next = [0] * num_servers

    def key(self, server: int) -> int:
        """The smallest unused key that MXNet sends to this server."""
        servers = len(self._next)
        key = self._next[server]
        while key * _HASH % servers != server:
            key += 1
        self._next[server] = key + 1
        return key
