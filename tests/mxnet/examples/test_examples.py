"""The cifar100, imagenet and mnist examples: their arguments, schedules, checkpoints and runs."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
import train_cifar100
import train_imagenet
import train_mnist
from common import training
from common.arguments import compression_params, max_grad_norm, meaning_of
from common.board import Board
from common.checkpoint import ResumePoint, resume_point
from common.datasets import mnist
from common.images import DatasetImages
from common.last_checkpoint import last_checkpoint
from common.log import read_configurations, read_log
from common.model import zoo_network
from common.schedule import learning_rate_schedule
from common.shares import share_of_this_worker
from mxnet.gluon.data import vision

import gluon_gc as bps
from gluon_gc.compression import parse, registry

ROOT = Path(__file__).resolve().parents[3]
ONEBIT = "--compressor onebit --onebit-scaling --ef vanilla --compress-momentum nesterov"

# From BytePS's reproduction guide.
CIFAR100 = (
    "--model resnet18_v2 --mode hybrib --batch-size 32 --num-gpus 1 --num-epochs 200 -j 2 "
    "--warmup-epochs 10 --warmup-lr 0.1 --lr 0.1 --logging-file out"
)
REC = (
    "--rec-train ~/data/ILSVRC2012/train.rec --rec-train-idx ~/data/ILSVRC2012/train.idx "
    "--rec-val ~/data/ILSVRC2012/val.rec --rec-val-idx ~/data/ILSVRC2012/val.idx --use-rec"
)
RESNET50 = (
    f"--model resnet50_v2 --mode hybrid {REC} --batch-size 64 --num-gpus 1 --num-epochs 120 -j 2 "
    "--warmup-epochs 5 --warmup-lr 0.2 --lr 0.2 --lr-mode cosine --logging-file baseline"
)
VGG16 = (
    f"--model vgg16 --mode hybrid  {REC} --batch-size 32 --num-gpus 1 --num-epochs 100 -j 2 "
    "--warmup-epochs 5 --warmup-lr 0.01 --lr 0.01 --lr-decay-epoch 50,80 --logging-file baseline"
)
COMPRESSED = {
    "": {},
    ONEBIT: {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov"},
    "--compressor topk --k 0.001": {"compressor": "topk", "k": 0.001},
    "--compressor randomk --k 0.001": {"compressor": "randomk", "k": 0.001},
    "--compressor dithering --k 2 --normalize l2": {
        "compressor": "dithering",
        "k": 2,
        "normalize": "l2",
    },
    "--fp16-pushpull": {"fp16": True},
}
ALL = {
    **COMPRESSED,
    "--compressor dithering --partition natural --compressor-seed 7": {
        "compressor": "dithering",
        "partition": "natural",
        "seed": 7,
    },
}


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize(
    "script, command",
    [(train_cifar100, CIFAR100), (train_imagenet, RESNET50), (train_imagenet, VGG16)],
    ids=["cifar100", "resnet50", "vgg16"],
)
def test_published_commands_parse(script, command, compression):
    args = script.parse_arguments(shlex.split(f"{command} {compression}"))
    assert args.num_gpus == 1 and args.num_workers == 2
    given = {key: value for key, value in compression_params(args).items() if value}
    assert given == ALL[compression]


def test_the_published_randomk_job_does_not_scale():
    args = train_cifar100.parse_arguments(shlex.split(f"{CIFAR100} --compressor randomk --k 0.001"))
    assert parse(compression_params(args)).compressor == registry["randomk"](0.001, scaling=False)
    args = train_cifar100.parse_arguments([*shlex.split(CIFAR100), "--scaling"])
    assert compression_params(args)["scaling"] is True


@pytest.mark.parametrize("text, k", [("1", 1), ("32", 32), ("0.01", 0.01), ("1.0", 1.0)])
def test_k_is_a_whole_number_where_it_is_written_as_one(text, k):
    given = compression_params(train_mnist.parse_arguments(["--k", text]))["k"]
    assert given == k and type(given) is type(k)


DGC = (
    "--compressor dgc --compress-momentum nesterov --dgc-compress-ratio 0.001 "
    "--dgc-warmup-epochs 3 --dgc-warmup-coeff 1.0,0.25,0.0625 --dgc-sample-ratio 0.02 "
    "--dgc-strided-sample false --dgc-compress-upper-bound 1.5 --dgc-compress-lower-bound 0.5 "
    "--dgc-max-adaptation-iters 5 --dgc-resample false --dgc-fp16-values true "
    "--dgc-momentum-masking false --dgc-gradient-clipping 2"
)


@pytest.mark.parametrize("script, command", [(train_cifar100, CIFAR100), (train_imagenet, VGG16)])
def test_the_command_line_reaches_every_option_of_a_compressor(script, command):
    args = script.parse_arguments(shlex.split(f"{command} {DGC} --clip 4"))
    expected = registry["dgc"](
        k=0.001,
        warmup_epochs=3,
        warmup_coeff=(1.0, 0.25, 0.0625),
        sample_ratio=0.02,
        strided_sample=False,
        compress_upper_bound=1.5,
        compress_lower_bound=0.5,
        max_adaptation_iters=5,
        resample=False,
        fp16_values=True,
        momentum_masking=False,
        gradient_clipping=2,
    )
    assert parse(compression_params(args), 0.9).compressor == expected
    assert max_grad_norm(args, 16) == 1.0
    args = script.parse_arguments(shlex.split(f"{command} --compressor dgc --k 0.001"))
    assert parse(compression_params(args), 0.9).compressor == registry["dgc"](0.001)
    assert max_grad_norm(args, 16) is None
    args = script.parse_arguments(
        shlex.split(f"{command} --compressor bytegrad --hierarchical true --exchange gather")
    )
    params = parse(compression_params(args))
    assert (params.compressor.name, params.hierarchical, params.exchange) == (
        "bytegrad",
        True,
        "gather",
    )


def test_what_an_option_cannot_be_is_refused_by_its_key():
    args = train_mnist.parse_arguments(shlex.split("--compressor dgc --k 9 --dgc-resample maybe"))
    with pytest.raises(TypeError, match=r"\['resample'\] must be True or False, got 'maybe'"):
        parse(compression_params(args))


def test_help_says_of_each_key_what_the_compressors_say(capsys):
    with pytest.raises(SystemExit):
        train_mnist.parse_arguments(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for option in registry["dithering"].keys().values():
        assert option.meaning in shown
        assert bool in option.types or option.allowed in shown
    share = registry["topk"].keys()["k"].meaning
    assert f"dgc, randomk, topk: {share}" in meaning_of("k") and share in shown


def shown_of(script, capsys):
    """Return a script's --help text by argument."""
    with pytest.raises(SystemExit):
        script.parse_arguments(["--help"])
    said = capsys.readouterr().out
    heading = "options:" if "\noptions:" in said else "optional arguments:"  # before Python 3.10
    said = re.split(r"\n  (?=-)", said.partition(heading)[2])
    return {text.split()[0].strip(","): " ".join(text.split()) for text in said if text.strip()}


@pytest.mark.parametrize("script", [train_cifar100, train_imagenet, train_mnist])
def test_help_says_defaults_and_choices(script, capsys):
    shown = shown_of(script, capsys)
    epochs = script.parse_arguments(["--model", "m"] if "--model" in shown else []).num_epochs
    assert f"(default: {epochs})" in shown["--num-epochs"]
    for argument, default in {"--momentum": 0.9, "--lr-mode": "step", "--num-gpus": 0}.items():
        assert f"(default: {default})" in shown[argument]
    assert "{step,poly,cosine}" in shown["--lr-mode"]
    assert "default: linear)" in shown["--partition"]
    for argument in ("--stats", "--resume-from"):  # flags, or without a default
        assert "default" not in shown[argument]
    assert re.findall(r"default: [^)]*", shown["--k"]) == ["default: 0.015625"]  # blocktopk's


def test_mnist_takes_the_names_of_bytepss_script():
    command = "--epochs 3 --j 0 --no-cuda --scaling --compress-momentum nesterov --lr 0.1 --wd 0"
    args = train_mnist.parse_arguments(command.split())
    assert (args.num_epochs, args.num_workers, args.num_gpus) == (3, 0, 0)
    given = compression_params(args)
    assert given["scaling"] is True and given["momentum"] == "nesterov"


def test_commands_of_the_page_parse():
    page = (ROOT / "example" / "README.md").read_text().replace("\\\n", "")
    commands = re.findall(r"python example/\w+/(train_\w+)\.py (.*)", page)
    assert {script for script, _ in commands} == {"train_cifar100", "train_imagenet", "train_mnist"}
    for script, arguments in commands:
        globals()[script].parse_arguments(shlex.split(arguments))


@pytest.mark.parametrize("mode, hybrid", [("hybrid", 1), ("hybrib", 1), ("imperative", 0)])
def test_the_mode_decides_whether_the_network_is_compiled(mode, hybrid):
    command = f"--model cifar_resnet20_v1 --mode {mode} --no-wd"
    net = zoo_network(train_cifar100.parse_arguments(command.split()), classes=100)
    assert net._active == bool(hybrid)
    decayed = {name for name, p in net.collect_params().items() if p.wd_mult}
    assert all(re.search("weight|running", name) for name in decayed)


def test_decay_epochs_that_do_not_ascend_are_refused(capsys):
    with pytest.raises(SystemExit):
        train_mnist.parse_arguments(["--lr-decay-epoch", "80,50"])
    assert "must be positive and ascending, got '80,50'" in capsys.readouterr().err


# Learning rates


STEPWISE = "--num-epochs 9 --warmup-epochs 2 --lr-decay-epoch 4,6"
HALVED = "--num-epochs 9 --lr-decay-period 3 --lr-decay 0.5"
TO_ZERO = "--num-epochs 6 --warmup-epochs 2 --lr-mode"
ENDS_EARLY = "--num-epochs 1 --warmup-epochs 2 --lr-mode"


def rates(command, updates, **kwargs):
    """Return the rates of updates; an epoch has 10, and there are 4 machines."""
    args = train_mnist.parse_arguments(f"--lr 0.1 {command}".split())
    schedule = learning_rate_schedule(args, 10, 4, **kwargs)
    return [schedule(update) for update in updates]


@pytest.mark.parametrize(
    "command, expected",
    [
        (
            f"{STEPWISE} --warmup-lr 0.2",
            {0: 0.2, 5: 0.25, 10: 0.3, 20: 0.4, 40: 0.4, 41: 0.04, 60: 0.04, 61: 0.004, 90: 0.004},
        ),
        (HALVED, {1: 0.4, 30: 0.4, 31: 0.2, 60: 0.2, 61: 0.1, 90: 0.1}),
        (f"{TO_ZERO} cosine", {10: 0.2, 20: 0.4, 40: 0.2, 60: 0.0}),
        (f"{TO_ZERO} poly", {10: 0.2, 20: 0.4, 40: 0.1, 60: 0.0}),
        *((f"{ENDS_EARLY} {mode}", {0: 0.0, 10: 0.2}) for mode in ("step", "cosine", "poly")),
    ],
)
def test_the_rate_follows_its_schedule(command, expected):
    assert rates(command, expected) == pytest.approx([*expected.values()])


def test_decay_may_be_counted_from_the_end_of_the_warm_up_on():
    found = rates(STEPWISE, [20, 60, 61, 80, 81], decay_after_warmup=True)
    assert found == pytest.approx([0.4, 0.4, 0.04, 0.04, 0.004])


@pytest.mark.parametrize("compression", ["", "--fp16-pushpull", "--compressor topk --k 0.1"])
def test_a_recipe_has_its_optimizer_where_nothing_is_compressed(
    alone, compression, monkeypatch, tmp_path
):
    noted = {}

    class Noted(bps.DistributedTrainer):
        def __init__(self, params, optimizer, *others, **more):
            noted["optimizer"] = optimizer
            super().__init__(params, optimizer, *others, **more)

    monkeypatch.setattr(training.bps, "DistributedTrainer", Noted)
    arguments = ["--save-dir", str(tmp_path), "--epochs", "1", *compression.split()]
    args = train_mnist.parse_arguments(arguments)
    net = mx.gluon.nn.Dense(3, in_units=2)
    recipe = training.Recipe(mx.init.Constant(7), uncompressed="nag")
    training.Training(net, SimpleNamespace(steps=5), args, "net", recipe)
    assert noted["optimizer"] == ("sgd" if "--compressor" in compression else "nag")
    np.testing.assert_array_equal(net.weight.data().asnumpy(), 7)


def test_a_warm_up_that_falls_is_refused():
    with pytest.raises(ValueError, match="--warmup-lr must be at most 0.4, got 0.5"):
        rates("--warmup-epochs 2 --warmup-lr 0.5", [0])


# Checkpoints


def test_a_checkpoint_is_named_by_its_weights():
    args = train_mnist.parse_arguments(["--resume-from", "params/mnist-12.params"])
    point = resume_point(args)
    assert point == ResumePoint("params/mnist-12.params", "params/mnist-12.states", 12)
    assert point.trainer_states(3) == "params/mnist-12.states.3"


def test_weights_alone_begin_a_new_run():
    args = train_mnist.parse_arguments(["--resume-params", "weights"])
    assert resume_point(args) == ResumePoint("weights")


@pytest.mark.parametrize(
    "command, message",
    [
        ("--resume-from weights.params", "NAME-EPOCHS.params, got 'weights.params'"),
        ("--resume-from a-1.params --resume-epoch 1", "with other --resume arguments"),
        ("--resume auto --resume-params a.params", "with other --resume arguments"),
    ],
)
def test_what_is_no_checkpoint_is_refused(command, message):
    with pytest.raises(ValueError, match=message):
        resume_point(train_mnist.parse_arguments(command.split()))


# Runs


def losses(data, folder, command):
    """Train on MNIST in this process; returns the loss of each step."""
    args = train_mnist.parse_arguments(command.split())
    args.logging_file = str(folder / "log.jsonl")
    images = DatasetImages(
        [mnist(str(data / "mnist"), train) for train in (True, False)],
        augment=[],
        prepare=[vision.transforms.ToTensor()],
        share=share_of_this_worker(args),
        processes=0,
    )
    training.Training(train_mnist.network(), images, args, "mnist", training.Recipe()).run()
    return sum((record["step_loss"] for record in read_log(args.logging_file)), [])


@pytest.fixture
def alone():
    """A cluster of this process alone."""
    bps.init()
    yield
    bps.shutdown()


def test_a_worker_with_two_devices_trains_as_one_with_twice_the_batch(
    alone, data, tmp_path, monkeypatch
):
    command = "--num-epochs 2 --save-period 0 --lr 0.05"
    expected = losses(data, tmp_path, f"{command} --no-cuda --batch-size 16")
    monkeypatch.setattr(training, "contexts", lambda num_gpus: [mx.cpu(i) for i in range(num_gpus)])
    found = losses(data, tmp_path, f"{command} --num-gpus 2 --batch-size 8")
    assert len(found) == 8
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_half_precision_without_a_gpu_is_refused(alone, data, tmp_path):
    with pytest.raises(ValueError, match="--dtype float16 needs --num-gpus"):
        losses(data, tmp_path, "--no-cuda --dtype float16 --batch-size 16")


CHECKSUM = re.compile(r"rank (\d) of 2: checksum of the parameters (\w+)")


def train(script, folder, arguments):
    """Run a script on two workers and one server; returns the workers' checksums, and the log.

    The output is in the file "said".
    """
    log = folder / "log.jsonl"
    launch = [sys.executable, "-m", "bpslaunch", "--local", "-n", "2", "-s", "1", sys.executable]
    common = f"{ONEBIT} --num-epochs 2 --log-interval 1 --logging-file {log} --save-dir {folder}"
    command = [*launch, f"example/{script}", *shlex.split(f"{common} {arguments}")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "said").write_text(done.stdout + done.stderr)
    return dict(CHECKSUM.findall(done.stdout)), read_log(str(log))


RECORDS = " ".join(
    f"--rec-{name}{option} DATA/imagenet/rec/{name}.{ending}"
    for name in ("train", "val")
    for option, ending in (("", "rec"), ("-idx", "idx"))
)
IMAGENET = (
    f"{RECORDS} --use-rec --model mobilenet0.25 --mode hybrid -j 1 --input-size 32 "
    "--batch-size 16 --mixup --label-smoothing --lr-mode cosine --warmup-epochs 1"
)


def assert_trained(sums, records):
    """Check that both workers have equal parameters, trained with onebit, and a complete log."""
    assert set(sums) == {"0", "1"} and sums["0"] == sums["1"]
    assert [record["epoch"] for record in records] == [1, 2]
    for record in records:
        assert len(record["step_loss"]) == 2
        assert np.isfinite(record["step_loss"]).all()
        assert 0 <= record["validation_accuracy"] <= record["validation_top5"] <= 1
    assert records[1]["pushed_bytes"] == pytest.approx(2 * records[0]["pushed_bytes"])


def test_two_epochs_on_a_cluster(data, tmp_path):
    arguments = IMAGENET.replace("DATA", str(data))
    assert_trained(*train("imagenet/train_imagenet.py", tmp_path, arguments))
    first = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert first["configuration"]["workers"] == 2
    assert first["configuration"]["gluon_gc"] == bps.__version__
    given = first["configuration"]["arguments"]
    assert given["compression_compressor"] == "onebit" and given["compression_scaling"]
    bars = re.findall(r"([\d.]+)/128 \[.*<(.*), .*image/s", (tmp_path / "said").read_text())
    assert bars[-1] == ("128", "00:00")  # two epochs of 64 images


def processes_of(launcher, words):
    """Yield the ids of bpslaunch's children whose command contains these words."""
    for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if words in Path(f"/proc/{pid}/cmdline").read_text():
            yield int(pid)


EPOCHS = 8


@pytest.fixture(scope="module")
def never_stopped(data, tmp_path_factory):
    """Train on MNIST; returns the folder with the checkpoints, the command line and the results."""
    folder = tmp_path_factory.mktemp("never_stopped")
    arguments = f"--no-cuda --data-dir {data}/mnist -j 0 --batch-size 16 --epochs {EPOCHS}"
    sums, records = train("mnist/train_mnist.py", folder, f"{arguments} --save-period 1")
    assert set(sums) == {"0", "1"} and sums["0"] == sums["1"]
    assert [record["epoch"] for record in records] == list(range(1, EPOCHS + 1))
    return folder, arguments, sums, records


def test_training_on_from_a_checkpoint_is_as_if_it_had_never_stopped(never_stopped):
    folder, arguments, sums, records = never_stopped
    saved = {path.name for path in folder.glob("mnist-*")}
    endings = ("params", "states.0", "states.1")
    assert saved == {f"mnist-{n}.{end}" for n in range(1, EPOCHS + 1) for end in endings}
    file = f"{folder}/mnist-{EPOCHS - 1}.params"
    again = f"{arguments} --save-period 0 --resume-from {file}"
    resumed, log = train("mnist/train_mnist.py", folder, again)
    assert resumed == sums
    assert [record["epoch"] for record in log[EPOCHS:]] == [EPOCHS]
    first, second = read_configurations(str(folder / "log.jsonl"))
    assert first["arguments"]["resume_from"] == ""
    assert second["arguments"]["resume_from"] == file
    assert log[-1]["step_loss"] == records[-1]["step_loss"]


def test_a_run_that_is_killed_and_restarted_ends_as_if_it_had_never_stopped(
    never_stopped, tmp_path
):
    _, arguments, sums, _ = never_stopped
    shell = (  # each worker has its own disk
        f"{sys.executable} example/mnist/train_mnist.py {arguments} {ONEBIT} --save-period 2 "
        f"--resume auto --save-dir {tmp_path}/$DMLC_WORKER_ID"
    )
    launch = [sys.executable, "-m", "bpslaunch", "--local", "-n", "2", "-s", "1"]
    with subprocess.Popen(
        [*launch, "--max-restarts", "1", shell],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    ) as launcher:
        said = []
        for line in launcher.stdout:
            said.append(line)
            if f"epoch 5 of {EPOCHS}: " in line and "; restart " not in "".join(said):
                os.kill(next(processes_of(launcher.pid, "train_mnist.py")), 9)
    said = "".join(said)
    assert launcher.returncode == 0 and said.count("; restart ") == 1, said
    assert "starts from the beginning" in said
    assert re.search(r"resumes from \S+/0/mnist-(4|6).params", said)
    assert dict(CHECKSUM.findall(said)) == sums


def test_the_last_checkpoint_is_one_that_is_whole(alone, data, tmp_path, capsys):
    losses(
        data,
        tmp_path,
        f"--no-cuda --batch-size 16 --epochs 3 --save-period 1 --save-dir {tmp_path}",
    )

    def epoch(most=3):
        return last_checkpoint(str(tmp_path), "mnist", most).epoch

    assert epoch() == 3 and epoch(most=2) == 2
    states = tmp_path / "mnist-3.states.0"
    states.write_bytes(states.read_bytes()[:-1])
    assert epoch() == 2
    (tmp_path / "mnist-2.params").write_bytes(b"not whole")
    assert epoch() == 1 and f"resumes from {tmp_path}/mnist-1.params" in capsys.readouterr().out
    (tmp_path / "mnist-1.states.0").unlink()
    assert epoch() == 0 and "starts from the beginning" in capsys.readouterr().out


def scalars(file):
    """Return the values in a TensorBoard event file by name and step."""
    from tensorboardX.proto.event_pb2 import Event

    found, content = {}, file.read_bytes()
    while content:  # length, its checksum, event, its checksum
        end = 12 + int.from_bytes(content[:8], "little")
        for value in (event := Event.FromString(content[12:end])).summary.value:
            found.setdefault(value.tag, {})[event.step] = value.simple_value
        content = content[end + 4 :]
    return found


def test_tensorboard_gets_what_the_log_gets(alone, data, tmp_path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    board = tmp_path / "board"
    command = f"--num-epochs 2 --save-period 0 --no-cuda --batch-size 16 --tensorboard {board}"
    expected = losses(data, tmp_path, command)
    found = scalars(*board.iterdir())
    assert list(found["step_loss"]) == list(range(1, 1 + len(expected)))
    assert list(found["step_loss"].values()) == pytest.approx(expected)
    for record in read_log(str(tmp_path / "log.jsonl")):
        for name in ("train_loss", "validation_accuracy", "pushed_bytes", "seconds"):
            assert found[name][record["epoch"]] == pytest.approx(record[name])


def test_tensorboard_names_the_package_that_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    Board("", {})
    with pytest.raises(ModuleNotFoundError, match="needs the package tensorboardX: pip install"):
        Board(str(tmp_path / "board"), {})
    assert not (tmp_path / "board").exists()


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    code = f"""
        import resource, signal, sys
        sys.path.insert(0, {str(ROOT / "example")!r})
        import mxnet as mx
        from common.checkpoint import Checkpoints
        net = mx.gluon.nn.Dense(300, in_units=1)
        net.initialize(mx.init.One())
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
        checkpoints = Checkpoints({str(tmp_path)!r}, "net", 1, rank=0)
        checkpoints.save(net, trainer, 1, last=False)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        net.initialize(mx.init.Zero(), force_reinit=True)
        checkpoints.save(net, trainer, 1, last=False)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
    assert process.returncode == 1 and "Invalid NDArray file format" in process.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"net-1.params", "net-1.states.0"}
    (weights,) = (w for w in mx.nd.load(str(tmp_path / "net-1.params")).values() if w.ndim == 2)
    np.testing.assert_array_equal(weights.asnumpy(), np.ones((300, 1)))
