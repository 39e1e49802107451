"""Messages on a GPU: the operators give the same bytes, states and sums as on the CPU."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Iterator

import mxnet as mx
import numpy as np
import pytest

from gluon_gc import kernels
from gluon_gc.compression import CompressionParams, registry
from gluon_gc.mxnet.engine import operators
from tests.mxnet.compressors.test_message_coder import Message, failing, payloads_in
from tests.mxnet.compressors.unmetered import Node
from tests.neutral.compressors.cases import options_of

FACTOR = 0.7
ON_GPU = {"dithering": {"fixed_width": True}}
"""Codec options on a GPU; the CPU has the same ones if both are in use."""
GPUS = (mx.gpu(0), mx.gpu(1))
each_compressor = pytest.mark.parametrize(
    "name", [name for name, traits in kernels.compressors().items() if traits.cuda]
)
each_gpu = pytest.mark.parametrize("gpu", GPUS, ids=str)


def messages(name: str, sizes: Any = (1000, 33, 5000)) -> Iterator[Message]:
    """Yield messages with a compressor's options, each feedback, with and without momentum."""
    kind = registry[name]
    feedback = [None] if kind.traits.accumulates else [None, "vanilla", "corrected"]
    cases = itertools.product(options_of(name, "cuda")[:2], feedback, (None, 0.9))
    for seed, (options, ef, mu) in enumerate(cases):
        own = {key: value for key, value in options.items() if key in kind.keys()}
        nesterov = options.get("nesterov", not kind.traits.accumulates)
        params = CompressionParams(kind(**own), ef=ef, mu=mu, nesterov=nesterov)
        dtype = ("float32", "float64", "float16")[seed % 3]
        yield Message(params, options.get("epoch"), dtype, sizes, seed % 4 != 0, seed)


def node_of(message: Message, context: mx.Context) -> Node:
    return Node(message, context, **ON_GPU.get(message.params.compressor.name, {}))


def same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return [one.tobytes() for one in ours] == [one.tobytes() for one in theirs]


@each_compressor
@each_gpu
def test_messages_states_and_sums_are_those_of_the_cpu(name, gpu):
    for message in messages(name):
        cpu, there = node_of(message, mx.cpu()), node_of(message, gpu)
        for step, (ratio, factor) in enumerate([(1.0, None), (0.5, FACTOR), (2.0, None)]):
            gradients = message.gradients(step)
            if step == 2:
                gradients[0][5] = np.nan
            expected, sent = (one.compress(gradients, ratio, factor) for one in (cpu, there))
            assert sent.context == gpu and sent.shape == expected.shape
            assert payloads_in(sent, there.codecs) == payloads_in(expected, cpu.codecs)
            assert there.kept() == cpu.kept()
            received = expected.asnumpy()
            assert same(there.decompress(received, 1), cpu.decompress(received, 1))


@each_compressor
@each_gpu
def test_messages_of_several_are_added_and_aggregated_as_on_the_cpu(name, gpu):
    if kernels.compressors()[name].summable:
        pytest.skip("the payloads of several are summed on their way")
    for message in messages(name):
        cpu, there = node_of(message, mx.cpu()), node_of(message, gpu)
        for step in range(2):
            senders = [node_of(message, mx.cpu()) for _ in range(3)]
            sent = [one.compress(message.gradients(3 * step + i)) for i, one in enumerate(senders)]
            received = np.stack([one.asnumpy() for one in sent])
            assert same(there.decompress(received, 3), cpu.decompress(received, 3))
            expected, answer = (one.aggregate(received) for one in (cpu, there))
            assert payloads_in(answer, there.codecs) == payloads_in(expected, cpu.codecs)
            assert there.kept() == cpu.kept()


@each_compressor
def test_a_message_of_many_chunks_is_that_of_the_cpu(name):
    message = next(messages(name, (70000, 1, *range(31, 300, 7))))
    for dtype in ("float32", "float16"):
        message = message._replace(dtype=dtype)
        cpu, there = node_of(message, mx.cpu()), node_of(message, mx.gpu())
        expected, sent = (one.compress(message.gradients(0)) for one in (cpu, there))
        assert payloads_in(sent, there.codecs) == payloads_in(expected, cpu.codecs)
        received = expected.asnumpy()
        assert same(there.decompress(received, 1), cpu.decompress(received, 1))


@each_compressor
def test_the_factor_of_clipping_is_read_on_the_gpu_and_multiplies_the_scale(name):
    message = next(messages(name, (300,)))
    plain, factored = (node_of(message, mx.gpu()) for _ in range(2))
    values = message.gradients(0)
    expected = plain.compress([values[0] * 0.5])
    sent = factored.compress(values, factor=0.5)
    assert payloads_in(sent, plain.codecs) == payloads_in(expected, plain.codecs)


def test_kernels_are_queued_in_the_stream_of_mxnet():
    message = next(messages("onebit"))
    node = node_of(message, mx.gpu())
    queued = ctypes.CDLL("libcuda.so.1").emulator_queued
    queued(None)
    node.decompress(node.compress(message.gradients(0)).asnumpy(), 1)
    assert queued(None) == 0  # none in the default stream


def test_gradients_of_another_dtype_are_refused():
    message = next(messages("onebit"))
    gradients = [one.astype("float64") for one in message.gradients(0)]
    with failing("a gradient and its chunks have different dtypes"):
        node_of(message, mx.gpu()).compress(gradients).wait_to_read()


def test_meters_and_framed_messages_are_refused_on_a_gpu():
    message = next(messages("onebit"))
    for attributes, why in (
        (dict(metered=1), "there is no meter on a GPU: metered must be 0"),
        (dict(row_words=256, message_rows=1), "messages are not framed on a GPU"),
    ):
        node = node_of(message, mx.gpu())
        given = {"metered": 0, "states": 0, "count": 1, "payload_bytes": node.count, **attributes}
        given.update(compressor="onebit", options="", dtype="float32", sizes="100,", row=0, rows=1)
        with failing(why):
            operators.call("aggregate", [node.array(np.zeros(9, np.uint8))], **given).wait_to_read()


def test_payloads_of_another_length_are_refused():
    message = next(messages("onebit"))
    node = node_of(message, mx.gpu())
    with failing("the payloads do not have the length that their chunks need"):
        node.decompress(np.zeros(node.count + 1, np.uint8), 1)


def test_what_is_too_large_for_a_workspace_is_refused():
    message = next(messages("onebit", (2**29,)))
    node = node_of(message, mx.gpu())
    with failing("the memory of a call must be at most 2147483583 bytes"):
        node.aggregate(np.zeros((1, node.count), np.uint8)).wait_to_read()
