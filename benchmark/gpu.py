"""Measures the speed of the GPU kernels, compared with a device-to-device copy.

For each compressor, call and size, the script prints:

- microseconds per call: the median of several rounds of calls that are queued back to back;
- GB/s: the bytes that the call must at least read and write in the GPU's memory, per second;
- that bandwidth as a share of the copy's bandwidth (bytes read and written).

    python benchmark/gpu.py [--json FILE] [--rounds N] [--sizes N ...]

It needs NumPy, a GPU with its driver, and a library with GPU code: see docs/guides/gpu.md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gluon_gc import kernels  # noqa: E402
from gluon_gc.compression import parse  # noqa: E402
from gluon_gc.kernels.library import TICKET_BYTES, Call, StateAddresses, Status  # noqa: E402
from tests.cuda.device import Device, Memory  # noqa: E402

SIZES = (2**20, 2**26)
CALLS = 20  # calls in a round
START = kernels.position((2**63 + 12345, 987654321))


class Case(NamedTuple):
    """compression_params, and the least bytes per float32 element that each call moves."""

    params: Mapping[str, Any]
    compress: float
    decompress: float

    @property
    def name(self) -> str:
        return self.params["compressor"]

    @property
    def options(self) -> Mapping[str, Any]:
        """The codec's options, with a momentum of 0.9 if the case uses momentum."""
        momentum = "momentum" in self.params or self.name == "dgc"
        return parse(self.params, 0.9 if momentum else None).on_gpu.options()


def cases() -> list[Case]:
    """Return each compressor plain, with error feedback, and with momentum as well."""
    plain = [
        Case({"compressor": "onebit", "scaling": True}, 4.125, 4.125),
        Case({"compressor": "topk", "k": 0.001}, 4, 4),
        Case({"compressor": "blocktopk"}, 4, 4),
        Case({"compressor": "randomk", "k": 0.01}, 0.05, 4),
        Case({"compressor": "dithering", "k": 2}, 8.4, 4.4),
        Case({"compressor": "bytegrad"}, 9, 5),
        Case({"compressor": "blockwise"}, 4.5, 4.5),
    ]
    fed = {
        "onebit": 12.125,
        "topk": 12,
        "blocktopk": 12,
        "randomk": 12,
        "dithering": 20.4,
        "bytegrad": 21,
        "blockwise": 12.5,
    }
    variants = []
    for case in plain:
        ef = {**case.params, "ef": "vanilla"}
        least_bytes = fed[case.name]
        variants += [case, case._replace(params=ef, compress=least_bytes)]
        momentum = {**ef, "momentum": "nesterov"}
        variants.append(case._replace(params=momentum, compress=least_bytes + 8))
    return [*variants, Case({"compressor": "dgc", "k": 0.001}, 20, 4)]


class Clock:
    """Measures the time of work that is queued on a GPU."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._begin, self._end = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (self._begin, self._end):
            device("cuEventCreate", ctypes.byref(event), 0)

    def seconds(self, call: Callable[[], object], rounds: int) -> float:
        """Return the seconds per call: the median over rounds of CALLS queued calls."""
        measured = []
        for _ in range(rounds + 1):  # the first round loads the kernels
            self._device("cuEventRecord", self._begin, None)
            for _ in range(CALLS):
                call()
            self._device("cuEventRecord", self._end, None)
            self._device.synchronize()
            elapsed = ctypes.c_float()
            self._device("cuEventElapsedTime", ctypes.byref(elapsed), self._begin, self._end)
            measured.append(elapsed.value / 1e3 / CALLS)
        return statistics.median(measured[1:])


def copy_bandwidth(device: Device, clock: Clock, n: int, rounds: int) -> float:
    """Return the bytes per second that a copy of n float32 elements reads and writes."""
    source, target = Memory(device, 4 * n), Memory(device, 4 * n)
    places = ctypes.c_uint64(target.address), ctypes.c_uint64(source.address)

    def copy() -> None:
        device("cuMemcpyDtoDAsync_v2", *places, ctypes.c_size_t(4 * n), None)

    return 8 * n / clock.seconds(copy, rounds)


class Bound:
    """A codec with its state, input and output in the GPU's memory."""

    def __init__(self, device: Device, case: Case, n: int) -> None:
        self._codec = kernels.Codec(case.name, case.options, n, isa="cuda")
        codec, values = self._codec, np.random.default_rng(0).standard_normal(n, np.float32)
        memory = [Memory(device, 4 * size) for size in codec.memory]
        momentum = Memory(device, 4 * codec.momentum) if codec.momentum else None
        workspace = Memory(device, codec.workspace_bytes)
        self._kept = [Memory(device, 4 * n), Memory(device, codec.payload_bytes), workspace]
        self._kept += [Memory(device, ctypes.sizeof(Status)), Memory(device, TICKET_BYTES)]
        gradient, payload, _, status, ticket = self._kept
        self._kept += [*memory, momentum]
        for kept in (*memory, *([momentum] if momentum else ())):
            zeros = np.zeros(n, np.float32)
            kept.write(zeros.ctypes.data)
        zeros = np.zeros(TICKET_BYTES, np.uint8)
        ticket.write(zeros.ctypes.data)
        gradient.write(values.ctypes.data)
        addresses = [one.address for one in memory] + [None] * (2 - len(memory))
        self._call = Call(
            codec=codec.handle,
            values=gradient.address,
            scale=1.0,
            ratio=1.0,
            state=StateAddresses(
                momentum.address if momentum else None, (ctypes.c_void_p * 2)(*addresses)
            ),
            position=START,
            payload=payload.address,
            payloads=payload.address,
            stride=codec.payload_bytes,
            count=1,
            workspace=workspace.address,
            ticket=ticket.address,
            status=ctypes.cast(status.address, ctypes.POINTER(Status)),
        )

    def compress(self) -> None:
        self._codec._invoke("compress", self._call)

    def decompress(self) -> None:
        self._call.add = 0
        self._codec._invoke("decompress", self._call)

    def decompress_add(self) -> None:
        self._call.add = 1
        self._codec._invoke("decompress", self._call)


def measure(sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """Measure all cases; return the results as a JSON object."""
    device = Device()
    clock = Clock(device)
    rows = []
    for n in sizes:
        bandwidth = copy_bandwidth(device, clock, n, rounds)
        for case in cases():
            bound = Bound(device, case, n)
            least = {
                "compress": case.compress,
                "decompress": case.decompress,
                "decompress_add": case.decompress + 4,
            }
            for call, of_element in least.items():
                if call != "compress" and "ef" in case.params:
                    continue  # feedback and momentum do not change decompression
                seconds = clock.seconds(getattr(bound, call), rounds)
                reached = of_element * n / seconds
                rows.append(
                    {
                        "compressor": case.name,
                        "compression_params": dict(case.params),
                        "call": call,
                        "elements": n,
                        "microseconds": 1e6 * seconds,
                        "GB/s": reached / 1e9,
                        "share_of_copy": reached / bandwidth,
                    }
                )
                print(
                    f"{case.name:10} {call:14} {n:10} {1e6 * seconds:10.1f} us "
                    f"{reached / 1e9:8.1f} GB/s {reached / bandwidth:6.2f} of a copy  "
                    f"{dict(case.params)}"
                )
    return {"gpu": device.name, "capability": device.capability, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file to write the results to")
    parser.add_argument("--rounds", type=int, default=15, help="the result is their median")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of elements")
    args = parser.parse_args()
    measured = measure(args.sizes, args.rounds)
    if args.json:
        args.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
