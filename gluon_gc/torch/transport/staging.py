"""Tensors in the form of the compressors: flat, real, float32 or float64."""

from __future__ import annotations

from contextlib import nullcontext
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
)

import torch
from torch.futures import Future

from ...compression import CompressionParams
from ...exchange.exchange import DeclaredTensor
from ...exchange.job import Done, Result
from ...exchange.plan import Slice, Tensor
from ...exchange.statistics import Size
from . import gpu

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_WORKING = {torch.float32: "float32", torch.float64: "float64"}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by bytes


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a complex dtype's parts. Other dtypes are unchanged."""
    return dtype.to_real() if dtype.is_complex else dtype


def real_numel(tensor: torch.Tensor) -> int:
    """Return a tensor's number of elements. A complex element counts as two."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """View a complex tensor as real, in the same memory. Real tensors are unchanged."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def is_sharded(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor, whose module takes long to import."""
    return hasattr(tensor, "to_local")


def sharded_like(local: torch.Tensor, like: DTensor) -> DTensor:
    """Return the DTensor with this worker's part, distributed as another one of its shape."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients are added and compressed.

    It is float32 for 16-bit floats, float64 for integers, and at least complex64 for complex
    numbers. Other dtypes are unchanged.
    """
    if dtype.is_complex:
        return torch.complex64 if dtype.itemsize < 8 else dtype
    if not dtype.is_floating_point:
        return torch.float64
    return torch.float32 if dtype.itemsize < 4 else dtype


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits, including the signs of zeros."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    bits = _BITS.get(one.itemsize, torch.int64)
    return torch.equal(one.view(bits), other.view(bits))


def planned_dtype(dtype: torch.dtype) -> str:
    """Return the dtype's name in a plan. NumPy has no bfloat16, so it counts as float16."""
    dtype = real_dtype(dtype)
    return "float16" if dtype == torch.bfloat16 else str(dtype).rpartition(".")[2]


def wire_of(dtype: torch.dtype, fp16: bool) -> str:
    """Return the dtype in which values of this dtype are sent uncompressed."""
    dtype = real_dtype(dtype)
    if not dtype.is_floating_point:
        return "float64"
    return "float16" if fp16 and dtype.itemsize > 2 else str(dtype).rpartition(".")[2]


class Parts(Mapping[str, torch.Tensor]):
    """Tensors that follow each other in a flat tensor. Views of them are made when needed."""

    def __init__(self, whole: torch.Tensor, slices: Mapping[str, slice]) -> None:
        self.whole, self.slices = whole, slices

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.whole[self.slices[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.slices)

    def __len__(self) -> int:
        return len(self.slices)

    def keys(self) -> KeysView[str]:
        return self.slices.keys()


class Staged:
    """Tensors as `exchange.arrays.Values`.

    The values are flat, in the order of the tensor's indices, whatever its memory format. So each
    residual belongs to the same element on all workers. The values of a complex tensor are those of
    `torch.view_as_real`. Where possible, values share memory with their tensors. Autograd does not
    notice that these are read and written: their version counters do not change.

    Raises ValueError if the tensors are on several devices.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.names = tensors.keys()
        self.memory: list[torch.Tensor] = []  # on a GPU: one tensor of each storage
        if isinstance(tensors, Parts) and _is_working(tensors.whole):
            self._share(tensors)
        else:
            self._stage(tensors)
        self._order = gpu.Order(self.device, self.memory)

    def _share(self, parts: Parts) -> None:
        """Use the memory of a flat tensor."""
        whole = parts.whole.data
        self.device = whole.device
        self._values, self._apart = Parts(whole, parts.slices), ()
        self.dtypes = (_WORKING[whole.dtype],) * len(parts)
        begin, size = whole.data_ptr(), whole.itemsize
        self._begins = {n: (begin + part.start * size, size) for n, part in parts.slices.items()}
        if gpu.has_streams(self.device):
            self.memory.append(whole)

    def _stage(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Use the memory of each tensor, or of a copy in the form of the compressors."""
        devices = {tensor.device: name for name, tensor in tensors.items()}
        if len(devices) > 1:
            where = ", ".join(f"'{name}' on {device}" for device, name in devices.items())
            raise ValueError(
                f"tensors that are averaged together must be on one device, got {where}"
            )
        self.device = next(iter(devices), gpu.CPU)
        self._tensors = {name: tensor.data for name, tensor in tensors.items()}
        self._values = {name: _values(tensor) for name, tensor in self._tensors.items()}
        self.dtypes = tuple(_WORKING[values.dtype] for values in self._values.values())
        self._begins = {n: (t.data_ptr(), t.itemsize) for n, t in self._values.items()}
        # The tensors whose values are in other memory.
        self._apart = [n for n, t in self._tensors.items() if self._begins[n][0] != t.data_ptr()]
        if gpu.has_streams(self.device):
            both = (*self._tensors.values(), *self._values.values())
            self.memory += {t.untyped_storage().data_ptr(): t for t in both}.values()

    def of(self, piece: Slice) -> torch.Tensor:
        """Return the values of a slice."""
        return self._values[piece.tensor][piece.begin : piece.end]

    def addresses(self, pieces: Sequence[Slice]) -> list[int]:
        """Return the memory addresses of the values of slices."""
        begins = [self._begins[piece.tensor] for piece in pieces]
        return [begin + piece.begin * size for piece, (begin, size) in zip(pieces, begins)]

    def queue(self) -> ContextManager[int | None]:
        """Return a `gpu.queue` on their device, after the work that computes them."""
        return self._order.queue_beside()

    def finished(self) -> ContextManager[int | None]:
        """Return a `gpu.queue` after all work on them."""
        return self._order.queue()

    def finish(self, scale: float) -> None:
        """Write scale * values to the tensors."""
        with self.finished():
            if scale != 1.0:
                for values in self._values.values():
                    values *= scale
            for name in self._apart:
                tensor = self._tensors[name]
                tensor.copy_(shaped(self._values[name], tensor))


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values in the form of the compressors."""
    if _is_working(tensor):
        return tensor
    return flat(tensor).to(working_dtype(real_dtype(tensor.dtype))).contiguous()


def _is_working(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is in the form of the compressors."""
    plain = tensor.dim() == 1 and tensor.dtype in _WORKING and not tensor.is_neg()
    return plain and tensor.is_contiguous()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in the order of their indices, as a view if possible."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().reshape(-1)


def shaped(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return flat values in the shape of another tensor; complex if that tensor is complex."""
    if not like.is_complex():
        return values.view(like.shape)
    return torch.view_as_complex(values.view(*like.shape, 2))


def declared(
    name: str,
    like: torch.Tensor,
    params: CompressionParams,
    index: int,
    size: int | None = None,
    called: str = "",
    on_nonfinite: str = "propagate",
    offset: int = 0,
) -> DeclaredTensor:
    """Return a declared tensor with the dtype and the device of another tensor.

    `size` is its number of elements, where a complex element counts as two; by default that of
    `like`. See `plan.Tensor` for the other arguments.
    """
    size = real_numel(like) if size is None else size
    dtype = planned_dtype(like.dtype)
    plan = Tensor(name, size, dtype, params, index, called, on_nonfinite, offset=offset)
    return DeclaredTensor(plan, wire_of(like.dtype, params.fp16), like.device)


def sizes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Size]:
    """Return the sizes of tensors, for statistics."""
    return {n: Size(t.numel() * t.itemsize, t.numel()) for n, t in tensors.items()}


class Names(frozenset):
    """Names as the value of a future of work on tensors.

    PyTorch looks for tensors in a future's value. It records events on their GPUs when the value is
    set, and lets the stream of whoever waits for the future wait for these.
    """

    def __new__(cls, names: Iterable[str], staged: Staged) -> Names:
        made = super().__new__(cls, names)
        made.memory = staged.memory
        return made


def future_on(device: torch.device) -> Future[Any]:
    """Return a future whose value has tensors on this device; see `Names`."""
    return Future(devices=[device] if gpu.has_streams(device) else [])


def resolving(
    future: Future[Any], result: Callable[[Result], Any], staged: Staged | None = None
) -> Done:
    """Return a `Done` that sets the value of a future to `result` of an exchange's result.

    The future's events come after all work on the tensors in `staged`. If `result` raises, `done`
    is called again with the error.
    """

    def done(found: Result | None, error: BaseException | None) -> None:
        if error is not None:
            future.set_exception(error)
            return
        with nullcontext() if staged is None else staged.finished():
            future.set_result(result(found))

    return done
