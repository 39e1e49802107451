"""MXNet's message codec gives the same bits as each chunk's codec on NumPy, for all compressors."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import Any, Iterator, NamedTuple

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_gc import kernels
from gluon_gc.compression import CompressionParams, registry
from gluon_gc.exchange.plan import Tensor, cut, working_dtype
from gluon_gc.mxnet.engine import operators
from gluon_gc.mxnet.exchange.channel import Channel
from gluon_gc.mxnet.exchange.coder import MessageCoder, Part
from gluon_gc.mxnet.exchange.gradient import Gradient, Job
from tests.neutral.compressors.cases import RATIOS, START, each_compressor, options_of
from tests.neutral.kernels.bindings import aggregate, half_from_float, valid

from .unmetered import Node

SCALE = 1 / 3
FRAMED_ZERO = 0x40000000
sizes = st.lists(st.sampled_from([1, 2, 17, 33, 300, 1000, 5000]), min_size=1, max_size=4)
each_framed = pytest.mark.parametrize(
    "name", [name for name, traits in kernels.compressors().items() if not traits.summable]
)
each_summed = pytest.mark.parametrize(
    "name", [name for name, traits in kernels.compressors().items() if traits.summable]
)
seldom = settings(max_examples=12, deadline=None)


class Numpy:
    """A node's codecs for a message, on NumPy."""

    def __init__(self, message: Message, node: int = 0) -> None:
        self.starts = message.starts(node)
        self.message, self.codecs = message, message.codecs()
        self.states = [codec.state() for codec in self.codecs]
        self.drawn = [0] * len(self.codecs)

    def _positions(self) -> list[kernels.Position]:
        return [kernels.position(*pair) for pair in zip(self.starts, self.drawn)]

    def move_on(self) -> None:
        """Set `positions` for the next call, and advance the random streams."""
        self.positions = self._positions()
        self.drawn = [drawn + codec.draws for drawn, codec in zip(self.drawn, self.codecs)]

    def compress(self, gradients: list[np.ndarray], ratio: float) -> list[np.ndarray]:
        """Return a payload for each chunk."""
        values = self.message.chunks(gradients)
        self.move_on()
        kwargs = dict(scale=SCALE, ratio=ratio)
        nodes = zip(self.codecs, values, self.states, self.positions)
        return [codec.compress(x, state, p, **kwargs)[0] for codec, x, state, p in nodes]

    def aggregate(self, payloads: list[list[np.ndarray]]) -> list[np.ndarray]:
        """Return a payload for each chunk, of the sum over the nodes."""
        self.move_on()
        nodes = zip(self.codecs, zip(*payloads), self.states, self.positions)
        return [aggregate(codec, np.stack(rows), state, p)[0] for codec, rows, state, p in nodes]

    def decompress(self, payloads: list[list[np.ndarray]]) -> list[np.ndarray]:
        """Return the sum of the nodes' payloads, in gradients that contained 7 before."""
        nodes = zip(self.codecs, zip(*payloads), self.positions)
        sums = [codec.decompress(np.stack(rows), p)[0] for codec, rows, p in nodes]
        return self.message.gradients_with(sums)


class Message(NamedTuple):
    """Compressed chunks: each of its own tensor, or all of one tensor (cut)."""

    params: CompressionParams
    epoch: int | None
    dtype: str
    sizes: tuple[int, ...]
    cut: bool
    seed: int

    @property
    def work(self) -> str:
        return working_dtype(self.dtype)

    def codecs(self) -> list[kernels.Codec]:
        return [self.params.codec(n, self.work, self.epoch) for n in self.sizes]

    def starts(self, node: int) -> list[tuple[int, int]]:
        alike = 0 if self.params.compressor.traits.draws_alike else node
        return [(START[0] + i, START[1] + alike) for i in range(len(self.sizes))]

    def codec(self, node: int = 0) -> MessageCoder:
        parts = [Part(n, start) for n, start in zip(self.sizes, self.starts(node))]
        codec = MessageCoder(self.params, self.work, parts)
        if self.epoch is not None:
            codec.set_epoch(self.epoch)
        return codec

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """For each chunk: its tensor and its start. The first chunk starts at element 1."""
        if self.cut:
            return tuple((0, 1 + at) for at in itertools.accumulate((0, *self.sizes[:-1])))
        return tuple((i, 1) for i in range(len(self.sizes)))

    def gradients(self, step: int, node: int = 0) -> list[np.ndarray]:
        random = np.random.default_rng((self.seed, step, node))
        lengths = [sum(self.sizes) + 2] if self.cut else [n + 2 for n in self.sizes]
        return [random.standard_normal(n).astype(self.dtype) for n in lengths]

    def chunks(self, gradients: list[np.ndarray]) -> list[np.ndarray]:
        offsets = zip(self.offsets, self.sizes)
        return [gradients[i][at : at + n].astype(self.work) for (i, at), n in offsets]

    def gradients_with(self, chunks: list[np.ndarray]) -> list[np.ndarray]:
        results = [np.full_like(gradient, 7) for gradient in self.gradients(0)]
        for (i, at), chunk in zip(self.offsets, chunks):
            cast = half_from_float(chunk) if self.dtype == "float16" else chunk
            results[i][at : at + chunk.size] = cast
        return results


@st.composite
def messages(draw: Any, name: str, dtypes: Any = ("float16", "float32", "float64")) -> Message:
    """Draw messages of a compressor, with and without momentum and feedback."""
    options, kind = draw(st.sampled_from(options_of(name))), registry[name]
    own = {key: value for key, value in options.items() if key in kind.keys()}
    feedback = [None, "vanilla", "corrected", *["sparse"] * kind.traits.draws_alike]
    params = CompressionParams(
        kind(**own),
        ef=None if kind.traits.accumulates else draw(st.sampled_from(feedback)),
        ef_decay=draw(st.sampled_from([1.0, 0.95])),
        mu=draw(st.sampled_from([None, 0.9])),
        nesterov=options.get("nesterov", not kind.traits.accumulates),
    )
    dtype, cut = draw(st.sampled_from(dtypes)), draw(st.booleans())
    seed = draw(st.integers(0, 2**32))
    return Message(params, options.get("epoch"), dtype, tuple(draw(sizes)), cut, seed)


def example(name: str, **more: Any) -> Message:
    """Return a message of a compressor without feedback."""
    options, kind = options_of(name)[0], registry[name]
    own = {key: value for key, value in options.items() if key in kind.keys()}
    nesterov = not kind.traits.accumulates
    params = CompressionParams(kind(**own), nesterov=nesterov)
    return Message(params, None, "float32", (100, 30), True, 1)._replace(**more)


def in_mxnet(gradients: list[np.ndarray]) -> list[mx.nd.NDArray]:
    return [mx.nd.array(gradient, dtype=gradient.dtype) for gradient in gradients]


def compressed(codec: MessageCoder, message: Message, step: int = 0, node: int = 0, **kwargs: Any):
    """Return a node's message."""
    gradients = in_mxnet(message.gradients(step, node))
    return codec.compress(gradients, message.offsets, SCALE, **kwargs)


def decompressed(codec: MessageCoder, received: Any, message: Message, **kwargs: Any):
    """Return gradients that contained 7 before, after decompression."""
    results = in_mxnet([np.full_like(gradient, 7) for gradient in message.gradients(0)])
    codec.decompress(received, results, message.offsets, **kwargs)
    return [result.asnumpy() for result in results]


def used(codecs: list[kernels.Codec], payloads: list[np.ndarray]) -> list[bytes]:
    pairs = zip(codecs, payloads)
    return [payload[: codec.used(payload)].tobytes() for codec, payload in pairs]


def payloads_in(message: mx.nd.NDArray, codecs: list[kernels.Codec]) -> list[bytes]:
    """Return the bytes in use of consecutive payloads."""
    ends = list(itertools.accumulate(codec.payload_bytes for codec in codecs))
    return used(codecs, np.split(message.asnumpy().view(np.uint8).ravel(), ends[:-1]))


def framed_words(codec: MessageCoder, payloads: list[bytes]) -> np.ndarray:
    """Return the expected contents of a message's rows."""
    body, rows = b"".join(payloads), codec.rows()
    if rows.varies:
        body = np.uint32(len(body) + 4).tobytes() + body
    words = kernels.frame(np.frombuffer(body, np.uint8))
    return np.pad(words, (0, -words.size % rows.row_words), constant_values=FRAMED_ZERO)


def sent_words(message: Any, rows: Any, rank: int) -> np.ndarray:
    """Return the contents of a message's rows, whose indices must start at its rank."""
    count = message.indices.shape[0]
    assert 1 <= count <= rows.count
    assert message.indices.asnumpy().tolist() == [rank * rows.count + i for i in range(count)]
    return message.data.asnumpy().view(np.uint32).ravel()


def union(messages: list[Any]) -> Any:
    """Return all rows in one array, as a server holds them."""
    data = np.concatenate([message.data.asnumpy() for message in messages])
    indices = np.concatenate([message.indices.asnumpy() for message in messages])
    return mx.nd.sparse.row_sparse_array((data, indices), shape=messages[0].shape)


def assert_same(arrays: Any, expected: Any) -> None:
    assert [array.tobytes() for array in arrays] == [array.tobytes() for array in expected]


@each_compressor
@seldom
@given(st.data())
def test_payloads_and_what_they_decode_to_are_those_of_numpy(name, data):
    message = data.draw(messages(name))
    codec, expected = message.codec(), Numpy(message)
    framed = not codec.summable and data.draw(st.booleans())
    framing = codec.rows().framing_at(0, 1) if framed else None
    for step, ratio in enumerate(RATIOS):
        payloads = expected.compress(message.gradients(step), ratio)
        sent = compressed(codec, message, step, ratio=ratio, framing=framing)
        if framed:
            words = framed_words(codec, used(expected.codecs, payloads))
            assert np.array_equal(sent_words(sent, codec.rows(), 0), words)
        else:
            assert payloads_in(sent, expected.codecs) == used(expected.codecs, payloads)
        got = decompressed(codec, [sent], message, framing=framed and codec.rows().framing())
        assert_same(got, expected.decompress([payloads]))
    assert operators.read_meter(codec.meter)["calls"] == len(RATIOS)


@each_framed
@seldom
@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_several_nodes_messages_are_added_and_aggregated_as_on_numpy(
    name, data, count, threads, framed
):
    message = data.draw(messages(name, dtypes=["float32", "float64"]))
    nodes = [message.codec(node) for node in range(count)]
    numpy = [Numpy(message, node) for node in range(count)]
    server, ours = message.codec(count), Numpy(message, count)
    rows = server.rows()
    for step, ratio in enumerate((1.0, 0.5)):
        payloads = [
            node.compress(message.gradients(step, i), ratio) for i, node in enumerate(numpy)
        ]
        ways = [rows.framing_at(i, count) if framed else None for i in range(count)]
        sent = [
            compressed(codec, message, step, i, ratio=ratio, framing=framing)
            for i, (codec, framing) in enumerate(zip(nodes, ways))
        ]
        received = union(sent) if framed else mx.nd.stack(*sent)
        got = decompressed(
            nodes[0],
            sent if framed else [received],  # rows may come in several arrays
            message,
            count=count,
            framing=framed and rows.framing(),
        )
        assert_same(got, numpy[0].decompress(payloads))

        answer = server.aggregate(received, count, threads, ways[0])
        expected = used(ours.codecs, ours.aggregate(payloads))
        if framed:
            assert np.array_equal(sent_words(answer, rows, 0), framed_words(server, expected))
        else:
            assert payloads_in(answer, ours.codecs) == expected


@each_summed
@seldom
@given(st.data())
def test_the_sum_of_messages_decodes_as_the_sum_of_payloads_does_on_numpy(name, data):
    message = data.draw(messages(name, dtypes=["float32", "float64"]))
    nodes = [message.codec(node) for node in range(3)]
    numpy = [Numpy(message, node) for node in range(3)]
    a, b, c = (node.compress(message.gradients(0, i), 1.0) for i, node in enumerate(numpy))
    values = [[payload.view(message.work) for payload in chunk] for chunk in zip(a, b, c)]
    summed = [(x + y + z).view(np.uint8) for x, y, z in values]
    a, b, c = (compressed(codec, message, 0, i) for i, codec in enumerate(nodes))
    got = decompressed(nodes[0], [a + b + c], message)
    assert_same(got, numpy[0].decompress([summed]))


@each_compressor
@seldom
@given(st.data())
def test_a_codec_goes_on_from_the_state_of_another_bit_for_bit(name, data):
    message = data.draw(messages(name, dtypes=["float32", "float64"]))
    codec, expected = message.codec(), Numpy(message)
    for step in range(2):
        expected.compress(message.gradients(step), 1.0)
        compressed(codec, message, step)
    saved = codec.state()

    for state, n in zip(saved, message.sizes):
        shapes = {key: (array.shape, array.dtype.name) for key, array in state.items()}
        assert shapes == message.params.state_layout(n, message.work)
    for state, its, kept in zip(saved, expected.codecs, expected.states):
        if its.memory:
            assert state["residual"].tobytes() == its.residual(kept).tobytes()
        if its.momentum:
            assert state["momentum"].tobytes() == kept.momentum.tobytes()
    for state, start, its in zip(saved, expected.starts, expected.codecs):
        if "stream" in state:
            moved = np.array(start, np.uint64)
            kernels.jump(moved, 2 * its.draws)
            assert state["stream"].tolist() == moved.tolist()

    restored = message.codec(node=5)
    restored.load_state(saved)
    for step in (2, 3):
        payloads = expected.compress(message.gradients(step), 0.5)
        for going in (codec, restored):
            sent = compressed(going, message, step, ratio=0.5)
            assert payloads_in(sent, expected.codecs) == used(expected.codecs, payloads)
            assert_same(decompressed(going, [sent], message), expected.decompress([payloads]))


@each_compressor
def test_from_a_new_epoch_on_it_compresses_as_in_that_epoch(name):
    for options in options_of(name):
        own = {key: value for key, value in options.items() if key in registry[name].keys()}
        params = CompressionParams(registry[name](**own), mu=0.9)
        message = example(name, params=params, epoch=0, sizes=(3000, 40))
        codec, numpy = message.codec(), Numpy(message)
        for epoch in (0, 1, 9):
            codec.set_epoch(epoch)
            numpy.codecs = message._replace(epoch=epoch).codecs()
            payloads = numpy.compress(message.gradients(epoch), 1.0)
            sent = compressed(codec, message, epoch)
            assert payloads_in(sent, numpy.codecs) == used(numpy.codecs, payloads)
            assert codec.payload_bytes == sum(one.payload_bytes for one in numpy.codecs)
            assert_same(decompressed(codec, [sent], message), numpy.decompress([payloads]))


@each_compressor
def test_the_meter_counts_what_travels(name):
    message = example(name)
    codec, expected = message.codec(), Numpy(message)
    payloads = [expected.compress(message.gradients(step), 1.0) for step in range(2)]
    num_bytes = sum(len(b) for chunk in payloads for b in used(expected.codecs, chunk))
    for step in range(2):
        decompressed(codec, [compressed(codec, message, step)], message)
    done = operators.read_meter(codec.meter)
    assert done["calls"] == 2 and done["nonfinite"] == 0
    assert done["sent_bytes"] == done["received_bytes"] == num_bytes
    assert min(done[f"{part}_seconds"] for part in ("compress", "wait", "decompress")) > 0


@each_framed
def test_the_meter_counts_the_rows_of_framed_messages(name):
    message = example(name, sizes=(40_000,))
    codec = message.codec()
    rows = codec.rows()
    sent = compressed(codec, message, framing=rows.framing_at(0, 1))
    decompressed(codec, [sent], message, framing=rows.framing())
    done = operators.read_meter(codec.meter)
    row_bytes = 4 * rows.row_words + 12  # ps-lite adds a key and a length to each row
    assert done["sent_bytes"] == done["received_bytes"] == sent.indices.shape[0] * row_bytes
    assert rows.row_words == 256 or rows.count == 1


def test_a_message_of_bytegrad_has_one_row_which_is_pulled_at_once():
    rows = example("bytegrad", sizes=(40_000, 5)).codec().rows()
    assert rows.varies and rows.count == 1


@each_compressor
@pytest.mark.parametrize("refused", [False, True])
def test_a_chunk_that_is_not_finite_is_counted_and_raised_if_it_is_refused(name, refused):
    message = example(name)
    starts = message.starts(0)
    called = ("the gradient of a", "the gradient of b") if refused else ("", "")
    parts = [Part(n, *rest) for n, *rest in zip(message.sizes, starts, called)]
    codec = MessageCoder(message.params, message.work, parts)
    decompressed(codec, [compressed(codec, message)], message)
    gradients = message.gradients(1)
    (_, begin) = message.offsets[1]
    gradients[0][begin : begin + message.sizes[1]] = np.nan
    sent = codec.compress(in_mxnet(gradients), message.offsets)
    if refused:
        with failing("the gradient of b has a NaN or an infinity in step 2"):
            decompressed(codec, [sent], message)
    else:
        (got,) = decompressed(codec, [sent], message)
        assert np.isfinite(got[:begin]).all() and not np.isfinite(got[begin:]).all()
        assert operators.read_meter(codec.meter)["nonfinite"] == 1


@each_compressor
def test_without_a_meter_the_operators_do_the_same_and_say_what_is_finite(name):
    message = example(name, sizes=(100, 30, 500))
    codec, expected, node = message.codec(), Numpy(message), Node(message, mx.cpu())
    for step in range(2):
        gradients = message.gradients(step)
        if step == 1:
            (_, begin) = message.offsets[1]
            gradients[0][begin : begin + message.sizes[1]] = np.nan
        payloads = expected.compress(gradients, 0.5)
        sent = node.compress(gradients, ratio=0.5)
        metered = codec.compress(in_mxnet(gradients), message.offsets, SCALE, ratio=0.5)
        lengths = [len(payload) for payload in used(expected.codecs, payloads)]
        assert payloads_in(sent, expected.codecs) == payloads_in(metered, expected.codecs)
        *got, statuses = node.decompress(sent.asnumpy(), 1)
        assert_same(got, expected.decompress([payloads]))
        assert statuses.dtype == np.int64
        assert statuses.tolist() == [lengths[0], 1, lengths[1], step == 0, lengths[2], 1]


@each_compressor
def test_a_factor_multiplies_the_scale_before_it_is_rounded(name):
    message = example(name)
    codec, expected, factor = message.codec(), Numpy(message), 0.7
    sent = compressed(codec, message, factor=mx.nd.array([factor], dtype="float64"))
    values = message.chunks(message.gradients(0))
    expected.move_on()
    nodes = zip(expected.codecs, values, expected.states, expected.positions)
    payloads = [its.compress(x, kept, p, scale=SCALE * factor)[0] for its, x, kept, p in nodes]
    assert payloads_in(sent, expected.codecs) == used(expected.codecs, payloads)


# Errors


@contextmanager
def failing(why: str) -> Iterator[None]:
    """Check that the queued work fails; MXNet's message also lists earlier failures."""
    with pytest.raises(mx.MXNetError) as raised:
        yield
    assert why in str(raised.value).rstrip().splitlines()[-1]


@each_compressor
def test_payloads_of_another_length_are_an_error(name):
    codec, message = example(name).codec(), example(name)
    sent = compressed(codec, message)
    with failing("not have the length that their chunks need"):
        decompressed(codec, [mx.nd.concat(sent, sent, dim=0)], message)


@each_framed
def test_payloads_of_fewer_nodes_are_an_error(name):
    codec, message = example(name).codec(), example(name)
    with failing("not have the length that their chunks need"):
        codec.aggregate(compressed(codec, message), 2).wait_to_read()


@each_compressor
def test_a_payload_that_is_none_is_an_error_that_says_which(name):
    message = example(name, sizes=(100,))
    (numpy,), codec = message.codecs(), message.codec()
    sent = compressed(codec, message).asnumpy()
    good = sent.view(np.uint8)
    bad = np.full_like(good, 255)
    if valid(numpy, bad):  # all bytes are valid payloads
        start = kernels.position(message.starts(0)[0])
        got = decompressed(codec, [mx.nd.array(bad.view(sent.dtype), dtype=sent.dtype)], message)
        assert_same(got, message.gradients_with([numpy.decompress(bad, start)[0]]))
        return
    with failing("payload 0 is not one of 100 elements"):
        decompressed(codec, [mx.nd.array(bad, dtype="uint8")], message)
    with failing("payload 1 is not one of 100 elements"):
        rows = mx.nd.array(np.stack([good, bad]), dtype="uint8")
        codec.aggregate(rows, 2).wait_to_read()


@each_framed
def test_rows_that_are_missing_or_no_messages_are_an_error_that_says_whose(name):
    message = example(name)
    codec = message.codec()
    rows = codec.rows()
    sent = compressed(codec, message, framing=rows.framing_at(0, 2))
    with failing("a row of the message of rank 1 is missing"):
        codec.aggregate(sent, 2, 1, rows.framing_at(0, 2)).wait_to_read()
    with failing("a row of the message of rank 1 is missing"):
        decompressed(codec, [sent], message, count=2, framing=rows.framing())
    garbage = mx.nd.sparse.row_sparse_array(
        (mx.nd.full((1, rows.row_words), np.inf), [rows.count]), shape=sent.shape
    )
    with failing("the row of rank 1 is not a gluon_gc payload"):
        codec.aggregate(union([sent, garbage]), 2, 1, rows.framing_at(0, 2)).wait_to_read()


@pytest.mark.parametrize("dtype, given", [("float32", "float64"), ("float64", "float16")])
def test_a_gradient_of_another_dtype_is_an_error(dtype, given):
    message = example("onebit", dtype=dtype)
    with failing("a gradient and its chunks have different dtypes"):
        compressed(message.codec(), message._replace(dtype=given)).wait_to_read()


def test_a_chunk_that_ends_behind_its_gradient_is_an_error():
    message = example("onebit", sizes=(100,))
    with failing("a chunk ends after its gradient"):
        message.codec().compress([mx.nd.ones(100)], ((0, 1),)).wait_to_read()


def test_a_sum_of_2_gib_is_refused_since_mxnet_counts_bytes_in_an_int():
    params = CompressionParams(registry["topk"](3))
    codec = MessageCoder(params, "float64", [Part(2**28)])
    with failing("the memory of a call must be at most 2147483583 bytes, got 21"):
        codec.aggregate(mx.nd.zeros((1, 36), dtype="uint8"), 1).wait_to_read()


# Channels


@each_compressor
def test_a_tensor_that_takes_no_part_travels_as_zeros_and_is_left_alone(name):
    message = example(name)
    tensors = [Tensor(t, 60, "float32", message.params) for t in "abc"]
    chunks, by_name = cut(tensors, 4096000, 0), {tensor.name: tensor for tensor in tensors}
    values = {t: mx.nd.random.normal(shape=(60,)) for t in "abc"}
    starts = [START] * 3
    absent, present = (Channel(chunks, by_name, starts) for _ in range(2))
    zeroed = {**values, "b": mx.nd.zeros(60)}

    def gradients(arrays):
        return {t: Gradient([array.copy()], [array]) for t, array in arrays.items()}

    some = gradients({t: values[t] for t in "ac"})
    sent = [
        channel.encode(Job(given))
        for channel, given in ((absent, some), (present, gradients(zeroed)))
    ]
    codecs = absent.coder.codecs
    assert payloads_in(sent[0], codecs) == payloads_in(sent[1], codecs)
    before = values["b"].asnumpy()
    absent.deliver(sent[:1], some)
    everything = gradients(zeroed)
    present.deliver(sent[1:], everything)
    for t in "ac":
        assert_same([some[t].result.asnumpy()], [everything[t].result.asnumpy()])
    assert_same([values["b"].asnumpy()], [before])
