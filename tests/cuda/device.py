"""A GPU's memory through the driver's API, and codecs whose calls use that memory.

The driver is that of the process: a real GPU's, or the emulator's.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gluon_gc import kernels
from gluon_gc.kernels.library import TICKET_BYTES, Call, Status

_GUARD, _PATTERN = 512, 0xA5  # around each allocation; a multiple of 256 keeps the alignment
_CAPABILITY = {"major": 75, "minor": 76}


class Device:
    """The first GPU; its primary context becomes current on this thread."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(number), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(128)
        self("cuDeviceGetName", name, len(name), number)
        self.name = name.value.decode()
        value = {}
        for part, attribute in _CAPABILITY.items():
            found = ctypes.c_int()
            self("cuDeviceGetAttribute", ctypes.byref(found), attribute, number)
            value[part] = found.value
        self.capability = 10 * value["major"] + value["minor"]  # 90 for compute capability 9.0

    def __call__(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver."""
        result = getattr(self._driver, function)(*arguments)
        if result != 0:
            raise RuntimeError(f"{function} answers CUDA error {result}")

    def synchronize(self) -> None:
        """Wait for all queued work; raises its errors."""
        self("cuCtxSynchronize")


class Memory:
    """Bytes in a GPU's memory, between guard bytes that `check` compares.

    `misaligned` is the offset of the start from a multiple of 256 bytes.
    """

    def __init__(self, device: Device, size: int, misaligned: int = 0) -> None:
        self._device, self._size = device, size
        self._room = ctypes.c_uint64()
        self._before, bytes_in_all = _GUARD + misaligned, size + 2 * _GUARD + misaligned
        device("cuMemAlloc_v2", ctypes.byref(self._room), ctypes.c_size_t(bytes_in_all))
        pattern = np.full(bytes_in_all, _PATTERN, np.uint8)
        device("cuMemcpyHtoD_v2", self._room, pattern.ctypes.data_as(ctypes.c_void_p), pattern.size)
        self.address = self._room.value + self._before

    def __del__(self) -> None:
        if self._room:
            self._device("cuMemFree_v2", self._room)

    def write(self, source: int) -> None:
        """Copy from host memory to this memory."""
        where = ctypes.c_uint64(self.address)
        size = ctypes.c_size_t(self._size)
        self._device("cuMemcpyHtoD_v2", where, ctypes.c_void_p(source), size)

    def read(self, target: int) -> None:
        """Copy this memory to host memory."""
        where = ctypes.c_uint64(self.address)
        size = ctypes.c_size_t(self._size)
        self._device("cuMemcpyDtoH_v2", ctypes.c_void_p(target), where, size)

    def check(self) -> None:
        """Check that the guard bytes are unchanged."""
        room = np.empty(self._before + self._size + _GUARD, np.uint8)
        self._device("cuMemcpyDtoH_v2", room.ctypes.data_as(ctypes.c_void_p), self._room, room.size)
        end = self._before + self._size
        assert (room[: self._before] == _PATTERN).all(), "written before the start of an array"
        assert (room[end:] == _PATTERN).all(), "written past the end of an array"


class DeviceCodec(kernels.Codec):
    """A CUDA codec for arrays in host memory: each call copies all arrays to the GPU and back.

    On the GPU, payloads start at arbitrary addresses. The parameters are the device, then those of
    `kernels.Codec`.
    """

    def __init__(self, device: Device, *codec: Any) -> None:
        super().__init__(*codec, isa="cuda")
        self._device, self._calls = device, 0

    def _invoke(self, function: str, call: Call) -> None:
        self._calls += 1
        staged: list[Memory] = []

        def stage(host: Any, size: int, misaligned: int = 0) -> Any:
            if not host or not size:
                return host
            memory = Memory(self._device, size, misaligned)
            memory.write(host)
            staged.append(memory)
            backs[memory] = host
            return memory.address

        backs: dict[Memory, int] = {}
        itemsize, odd = self.dtype.itemsize, self._calls % 5
        call.values = stage(call.values, self.n * itemsize)
        call.factor = stage(call.factor, ctypes.sizeof(ctypes.c_double))
        for state in (call.state, *([call.earlier.contents] if call.earlier else [])):
            state.momentum = stage(state.momentum, self.momentum * itemsize)
            for i, size in enumerate(self.memory):
                state.memory[i] = stage(state.memory[i], size * itemsize)
        call.payload = stage(call.payload, self.payload_bytes, odd)
        call.payloads = stage(call.payloads, call.stride * call.count, odd)
        call.workspace = stage(call.workspace, self.workspace_bytes)
        call.ticket = stage(call.ticket, TICKET_BYTES)
        status = ctypes.addressof(call.status.contents)
        on_gpu = stage(status, ctypes.sizeof(Status))
        call.status = ctypes.cast(on_gpu, ctypes.POINTER(Status))
        super()._invoke(function, call)
        self._device.synchronize()
        for memory in staged:
            memory.check()
            memory.read(backs[memory])
