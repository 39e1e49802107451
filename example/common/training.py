"""The training loop of the cifar100, imagenet and mnist examples."""

import argparse
import random
import time
from collections import deque
from typing import Any, Deque, Dict, Iterable, Iterator, List, NamedTuple, Optional, Protocol, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.ndarray import NDArray

import gluon_gc as bps

from .arguments import compression_params, max_grad_norm
from .checkpoint import Checkpoints, ResumePoint, resume_point
from .checksum import parameter_checksum
from .images import Batch
from .last_checkpoint import last_checkpoint
from .log import EpochLog
from .progress import STEPS_AHEAD, progress_bar, say, traffic_postfix
from .schedule import learning_rate_schedule
from .stats import stats_table
from .targets import Targets


class Images(Protocol):
    """This worker's share of the images."""

    steps: int  # steps per epoch, the same on all workers

    def train(self, epoch: int) -> Iterator[Batch]:
        """Yield `steps` full batches."""

    def validation(self) -> Iterator[Batch]:
        """Yield each validation image once, in batches."""


class Recipe(NamedTuple):
    """Settings that are hard-coded in each of BytePS's scripts.

    Parameters
    ----------
    initializer : Initializer
        Initializer of the weights.
    uncompressed : str
        The optimizer without a compressor. With a compressor it is "sgd".
    decay_after_warmup : bool
        Whether --lr-decay-epoch counts epochs from the end of the warm-up.
    """

    initializer: mx.init.Initializer = mx.init.MSRAPrelu()
    uncompressed: str = "sgd"
    decay_after_warmup: bool = False


def contexts(num_gpus: int) -> List[mx.Context]:
    """Return this worker's devices: its own `num_gpus` GPUs, or the CPU if that is 0."""
    first = bps.local_rank() * num_gpus
    return [mx.gpu(first + i) for i in range(num_gpus)] or [mx.cpu()]


class Training:
    """A network in training on this worker.

    Parameters
    ----------
    net : HybridBlock
        The network, not yet initialised.
    images : Images
        Training and validation images.
    args : Namespace
        The arguments that `common.arguments` adds; those of models are not needed.
    name : str
        The name of checkpoints.
    recipe : Recipe
    targets : Targets, optional
        Targets to train on instead of labels.

    Raises
    ------
    ValueError
        If arguments contradict each other.
    """

    def __init__(
        self,
        net: gluon.HybridBlock,
        images: Images,
        args: argparse.Namespace,
        name: str,
        recipe: Recipe,
        targets: Optional[Targets] = None,
    ) -> None:
        self._net = net
        self._images = images
        self._args = args
        self._recipe = recipe
        self._targets = targets
        self._contexts = contexts(args.num_gpus)
        if args.dtype == "float16" and not args.num_gpus:
            raise ValueError("--dtype float16 needs --num-gpus: MXNet supports it on GPUs only")
        self._batch_size = args.batch_size * len(self._contexts)
        self._step_images = self._batch_size * bps.size()
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=targets is None)
        point = resume_point(args)
        if args.resume:
            point = last_checkpoint(args.save_dir, name, args.num_epochs)
        self._first_epoch = point.epoch
        self._initialize(point)
        self._trainer = self._make_trainer(point)
        rank = bps.rank()
        self._checkpoints = Checkpoints(args.save_dir, name, args.save_period, rank)
        self._log = EpochLog(args, bps.rank(), bps.size(), resume=point.epoch > 0)
        of_epoch = images.steps * self._step_images
        self._bar = progress_bar(args.num_epochs * of_epoch, bps.rank(), point.epoch * of_epoch)

    def _initialize(self, point: ResumePoint) -> None:
        mx.random.seed(self._args.seed)
        self._net.cast(self._args.dtype)
        if point.params:
            self._net.load_parameters(point.params, ctx=self._contexts)
        else:
            self._net.initialize(self._recipe.initializer, ctx=self._contexts)

    def _make_trainer(self, point: ResumePoint) -> bps.DistributedTrainer:
        args, recipe, params = self._args, self._recipe, compression_params(self._args)
        machines = bps.size() // bps.local_size()
        steps = self._images.steps
        schedule = learning_rate_schedule(args, steps, machines, recipe.decay_after_warmup)
        trainer = bps.DistributedTrainer(
            self._net.collect_params(),
            "sgd" if params["compressor"] else recipe.uncompressed,
            {
                "lr_scheduler": schedule,
                "momentum": args.momentum,
                "wd": args.wd,
                "multi_precision": args.dtype != "float32",
                "begin_num_update": point.epoch * steps,
            },
            compression_params=params,
            max_grad_norm=max_grad_norm(args, bps.size()),
        )
        if point.states:
            trainer.load_states(point.trainer_states(bps.rank()))
            trainer.optimizer.lr_scheduler = schedule  # replaces the saved schedule
        return trainer

    def run(self) -> None:
        """Train until --num-epochs epochs are done."""
        args, rank = self._args, bps.rank()
        for epoch in range(self._first_epoch, args.num_epochs):
            start = time.perf_counter()
            step_loss = self._train(epoch)
            seconds = time.perf_counter() - start
            bps.average_statistics(self._net)
            top1, top5 = self._validate()
            if rank == 0:
                self._bar.set_postfix(traffic_postfix(self._trainer))
                record = self._record(epoch, step_loss, top1, top5, seconds)
                self._log.write(record)
                say(
                    f"epoch {epoch + 1} of {args.num_epochs}: loss {record['train_loss']:.4f}, "
                    f"validation {top1:.2%}, top 5 {top5:.2%}, {seconds:.1f} s"
                )
            last = epoch + 1 == args.num_epochs
            self._checkpoints.save(self._net, self._trainer, epoch + 1, last)
        self._bar.close()
        self._log.close()
        if args.stats and rank == 0:
            print(stats_table(self._trainer.compression_stats()))
        checksum = parameter_checksum(self._net)
        print(f"rank {rank} of {bps.size()}: checksum of the parameters {checksum}")

    def _train(self, epoch: int) -> np.ndarray:
        """Train one epoch; return the loss of each step."""
        self._trainer.set_epoch(epoch)
        rng = np.random.default_rng((self._args.seed, epoch, bps.rank()))
        for seed in (random.seed, mx.random.seed):  # for dropout and augmentation
            seed(int(rng.integers(2**31)))
        known: List[float] = []
        pending: Deque[NDArray] = deque()
        since = time.perf_counter()
        for step, batch in enumerate(self._images.train(epoch), start=1):
            pending.append(self._step(*batch, epoch, rng))
            if len(pending) > STEPS_AHEAD:
                known.append(pending.popleft().asscalar())
                self._bar.update(self._step_images)
            if step % self._args.log_interval == 0 and known and bps.rank() == 0:
                seconds, since = time.perf_counter() - since, time.perf_counter()
                self._report(epoch, step, known[-1], seconds)
        known += [loss.asscalar() for loss in pending]
        self._bar.update(len(pending) * self._step_images)
        return np.array(known)

    def _step(
        self, pixels: NDArray, labels: NDArray, epoch: int, rng: np.random.Generator
    ) -> NDArray:
        """Train on one batch; return its mean loss, whose value may not be computed yet."""
        if self._targets is not None:
            pixels, labels = self._targets(pixels, labels, epoch, rng)
            labels = labels.astype(self._args.dtype, copy=False)
        losses = []
        with autograd.record():
            for x, y in self._split(pixels, labels):
                losses.append(self._loss(self._net(x), y))
        autograd.backward(losses)
        self._trainer.step(self._batch_size)
        means = [loss.astype("float32").mean().as_in_context(mx.cpu()) for loss in losses]
        return mx.nd.add_n(*means) / len(means)

    def _split(self, pixels: NDArray, labels: NDArray) -> Iterable[Tuple[NDArray, NDArray]]:
        """Split a batch among this worker's devices."""
        pixels = pixels.astype(self._args.dtype, copy=False)
        return zip(
            gluon.utils.split_and_load(pixels, self._contexts, even_split=False),
            gluon.utils.split_and_load(labels, self._contexts, even_split=False),
        )

    def _report(self, epoch: int, step: int, loss: float, seconds: float) -> None:
        images = self._args.log_interval * self._step_images
        say(
            f"epoch {epoch + 1}, step {step} of {self._images.steps}: "
            f"loss {loss:.4f}, {images / seconds:,.0f} images/s, "
            f"learning rate {self._trainer.learning_rate:.4g}"
        )

    def _validate(self) -> Tuple[float, float]:
        """Return top-1 and top-5 accuracy on the validation images of all workers."""
        metrics = mx.metric.Accuracy(), mx.metric.TopKAccuracy(5)
        for batch in self._images.validation():
            for x, y in self._split(*batch):
                output = self._net(x).astype("float32")
                for metric in metrics:
                    metric.update([y], [output])
        right = [metric.sum_metric for metric in metrics]
        own = np.array([*right, metrics[0].num_inst])
        top1, top5, count = bps.allreduce(own, average=False).tolist()
        return top1 / count, top5 / count

    def _record(
        self, epoch: int, step_loss: np.ndarray, top1: float, top5: float, seconds: float
    ) -> Dict[str, Any]:
        """Return the log record of an epoch."""
        traffic = self._trainer.compression_stats()["total"]
        steps = self._images.steps * (epoch + 1)
        return {
            "epoch": epoch + 1,
            "train_loss": float(step_loss.mean()),
            "validation_accuracy": top1,
            "validation_top5": top5,
            "learning_rate": self._trainer.learning_rate,
            "seconds": seconds,
            "pushed_bytes": traffic["pushed_bytes"] * steps,
            "pulled_bytes": traffic["pulled_bytes"] * steps,
            "step_loss": step_loss.tolist(),
        }
