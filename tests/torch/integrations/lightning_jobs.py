"""Jobs that train with Lightning, for test_integrations.py."""

import functools
import logging
import warnings
from unittest import mock

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.nn.parallel import DistributedDataParallel

from gluon_gc.torch.integrations.attached import AttachedCompression
from gluon_gc.torch.integrations.lightning import CompressionCallback
from tests.torch.common import ONEBIT, Net, assert_alike, data, flat, logged, raised, sgd
from tests.torch.integrations import by_hand

warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(LightningModule):
    def __init__(self, optimizers=1, manual=False):
        super().__init__()
        self.net, self._optimizers = Net(), optimizers
        self.automatic_optimization = not manual

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        if not self.automatic_optimization:
            self.manual_backward(loss)
            own = self.optimizers()
            for optimizer in own if self._optimizers > 1 else [own]:
                optimizer.step()
                optimizer.zero_grad()
        return loss

    def configure_optimizers(self):
        if self._optimizers == 1:
            return [sgd(self.net)]
        layers = self.net.first, torch.nn.Sequential(self.net.second, self.net.last)
        return [sgd(layer) for layer in layers]

    def train_dataloader(self):
        batches = [data(step) for step in range(by_hand.BATCHES)]
        return torch.utils.data.DataLoader(batches, batch_size=None)


def fit(callback, module=None, checkpoint=None, **more):
    """Train; returns the module and the trainer."""
    options = dict(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False)
    options |= dict(enable_checkpointing=False, enable_progress_bar=False)
    options |= dict(enable_model_summary=False, use_distributed_sampler=False)
    trainer = Trainer(callbacks=[callback], **{**options, **more})
    module = module or Module()
    trainer.fit(module, ckpt_path=checkpoint)
    return module, trainer


def trained_as_by_hand(folder):
    for params, algorithm in by_hand.CASES:
        callback = CompressionCallback(params, algorithm)
        module, _ = fit(callback)
        assert torch.equal(flat(module.net), by_hand.trained(params, algorithm)), params
        assert callback.compression.state.steps == 2 * by_hand.BATCHES


def _without_sync(ddp, output, post_forward=DistributedDataParallel._post_forward):
    """Check that DDP does not synchronize gradients after a forward pass."""
    assert not ddp.require_backward_grad_sync
    return post_forward(ddp, output)


def manual_optimization_with_an_algorithm_keeps_gradients_local(folder):
    params, algorithm = by_hand.CASES[-1]
    with mock.patch.object(AttachedCompression, "keep_gradients_local") as keep:
        hooked, _ = fit(CompressionCallback(params, algorithm), Module(manual=True))
    assert keep.call_count == 2 * by_hand.BATCHES
    assert torch.equal(flat(hooked.net), by_hand.trained(params, algorithm))
    with mock.patch.object(DistributedDataParallel, "_post_forward", _without_sync):
        module, _ = fit(CompressionCallback(params, algorithm), Module(manual=True))
    assert torch.equal(flat(module.net), by_hand.trained(params, algorithm))


def resumed_bit_for_bit(folder):
    for number, (params, algorithm) in enumerate(by_hand.CASES):
        path = str(folder / f"{number}.ckpt")
        _, trainer = fit(CompressionCallback(params, algorithm), max_epochs=1)
        trainer.save_checkpoint(path, weights_only=False)
        with logged() as lines:
            module, _ = fit(CompressionCallback(params, algorithm), checkpoint=path)
        assert torch.equal(flat(module.net), by_hand.trained(params, algorithm)), params
        assert not lines


def accumulated_gradients_are_one_step(folder):
    callback = CompressionCallback(ONEBIT)
    with logged() as lines:
        module, _ = fit(callback, accumulate_grad_batches=2)
        assert callback.compression.state.steps == by_hand.BATCHES
        assert_alike(flat(module.net))
        module, _ = fit(callback)  # the callback is used again
    assert torch.equal(flat(module.net), by_hand.trained(ONEBIT))
    assert not lines


def several_optimizers_share_the_compression(folder):
    topk = {"compressor": "topk", "k": 0.05, "ef": "vanilla"}
    module, _ = fit(CompressionCallback(topk), Module(optimizers=2, manual=True))
    assert torch.equal(flat(module.net), by_hand.trained(topk))
    message = "an algorithm needs a training loop with one optimizer"
    callback = CompressionCallback(topk, "local_steps")
    raised(ValueError, message, lambda: fit(callback, Module(optimizers=2, manual=True)))


def one_worker_is_refused(folder):
    fitting = functools.partial(fit, CompressionCallback(), devices=1, strategy="auto")
    raised(ValueError, "the tool has made a Module: start two or more workers", fitting)


def reports_follow_the_steps(folder):
    for params, algorithm in by_hand.CASES:
        callback = CompressionCallback(params, algorithm, report={"every": 2, "measure_error": 2})
        module, _ = fit(callback)
        assert torch.equal(flat(module.net), by_hand.trained(params, algorithm)), params
        steps = 2 * by_hand.BATCHES
        assert callback.compression.reporter.last.step == steps - steps % 2
