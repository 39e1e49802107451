"""Keys of MXNet's parameter server, which it spreads over its servers by a hash."""

_HASH = 9973  # MXNet sends a key to server (key * 9973) mod servers


class KeyAllocator:
    """Hands out KVStore keys, each such that MXNet's hash sends it to the server wanted."""

    def __init__(self, num_servers: int) -> None:
        self._next = [0] * num_servers

    def key(self, server: int) -> int:
        servers = len(self._next)
        key = self._next[server]
        while key * _HASH % servers != server:
            key += 1
        self._next[server] = key + 1
        return key
