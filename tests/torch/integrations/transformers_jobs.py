"""Jobs that train with the Trainer of transformers, for test_integrations.py."""

import os
import shutil
import types
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import HPSearchBackend

import gluon_gc.torch as bps
from gluon_gc.torch.integrations.attached import AttachedCompression
from gluon_gc.torch.integrations.transformers import CompressionCallback
from tests.torch.common import assert_alike, flat, logged, raised
from tests.torch.integrations import by_hand

EPOCHS, BATCH = 2, 4
ROWS = BATCH * by_hand.BATCHES * 2
START_FROM_ZERO = (
    "the Trainer's checkpoint has no state of the compression: residuals and momentum start from "
    "zero"
)


class Stream(torch.utils.data.IterableDataset):
    """The rows, without a length."""

    def __iter__(self):
        return iter(rows())


def model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


def rows():
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(50, (ROWS, 7), generator=random)
    return [{"input_ids": row, "labels": int(row[0]) % 2} for row in ids]


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def trainer(folder, params, algorithm=None, report=None, **more):
    options = dict(
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        train_sampling_strategy="sequential",
        lr_scheduler_type="constant",
        max_grad_norm=0,
        average_tokens_across_devices=False,  # it multiplies this model's loss by the workers
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    arguments = TrainingArguments(str(folder), **{**options, **more})
    net = model()
    made = Trainer(net, arguments, train_dataset=rows(), optimizers=(sgd(net), None))
    made.add_callback(CompressionCallback(made, params, algorithm, report))
    return made


def by_hand_(params, algorithm):
    net = wrapped = model()
    optimizer = sgd(net)
    if algorithm is None:
        wrapped = DistributedDataParallel(net)
        state = bps.CompressionState(net.named_parameters(), params, optimizer)
        wrapped.register_comm_hook(state, bps.compression_hook)
    else:
        options = dict(compression_params=params, algorithm=algorithm)
        bps.DistributedOptimizer(optimizer, net.named_parameters(), **options)
        state = optimizer.compression_state
    batches = torch.utils.data.default_collate(rows())
    batches = {key: values.split(BATCH)[dist.get_rank() :: 2] for key, values in batches.items()}
    for epoch in range(EPOCHS):
        state.set_epoch(epoch)
        for batch in range(by_hand.BATCHES):
            optimizer.zero_grad()
            wrapped(**{key: values[batch] for key, values in batches.items()}).loss.backward()
            optimizer.step()
    state.close()
    return flat(net)


def trained_as_by_hand(folder):
    for params, algorithm in by_hand.CASES:
        made = trainer(folder, params, algorithm)
        made.train()
        assert torch.equal(flat(made.model), by_hand_(params, algorithm)), params


def resumed_bit_for_bit(folder):
    for number, (params, algorithm) in enumerate(by_hand.CASES):
        saving = dict(save_strategy="steps", save_steps=3)
        whole = trainer(folder / str(number), params, algorithm, **saving)
        whole.train()
        with logged() as lines:
            last = dict(resume_from_checkpoint=True)  # checkpoint-8, not the one that is read
            resumed = trainer(folder / str(number), params, algorithm, **last)
            resumed.train(resume_from_checkpoint=str(folder / str(number) / "checkpoint-3"))
        assert torch.equal(flat(whole.model), flat(resumed.model)), params
        assert not lines


def trained_twice(folder):
    made = trainer(folder, by_hand.CASES[0][0], num_train_epochs=1)
    with logged() as lines:
        made.train()
        made.train()
    assert torch.equal(flat(made.model), by_hand_(by_hand.CASES[0][0], None))
    assert not lines


class Fails(TrainerCallback):
    """The first try is out of memory, on all workers."""

    fails = True

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2 and self.fails:
            self.fails = False
            raise RuntimeError("CUDA out of memory.")


def a_smaller_batch_is_tried(folder):
    for params, algorithm in by_hand.CASES:
        made = trainer(folder, params, algorithm, auto_find_batch_size=True, max_steps=3)
        made.add_callback(Fails())
        made.train()
        assert made.state.global_step == 3
        assert not any(isinstance(c, Fails) and c.fails for c in made.callback_handler.callbacks)


def each_trial_of_a_search_has_its_folder(folder):
    params = by_hand.CASES[0][0]
    made = trainer(folder, params, save_strategy="steps", save_steps=3, max_steps=3)
    made.hp_search_backend, made.hp_space = HPSearchBackend.OPTUNA, lambda trial: {}
    with mock.patch("transformers.integrations.hp_params", lambda trial: {}):  # needs optuna
        for number in (0, 1):
            made.train(trial=types.SimpleNamespace(number=number, params={}))
    dist.barrier()
    found = sorted(str(path.relative_to(folder)) for path in folder.glob("run-*/*/gluon_gc_*.pt"))
    assert found == [f"run-{n}/checkpoint-3/gluon_gc_{r}.pt" for n in (0, 1) for r in (0, 1)], found


def accumulated_gradients_are_one_step(folder):
    made = trainer(folder, by_hand.CASES[0][0], gradient_accumulation_steps=2)
    with logged() as lines:
        made.train()
    (callback,) = [c for c in made.callback_handler.callbacks if isinstance(c, CompressionCallback)]
    assert callback.compression.state.steps == EPOCHS * by_hand.BATCHES // 2
    assert_alike(flat(made.model))
    assert not lines


def the_epoch_is_right_if_the_length_of_the_data_is_unknown(folder):
    made = trainer(folder, {}, max_steps=3 * by_hand.BATCHES)
    made.train_dataset = Stream()
    with mock.patch.object(AttachedCompression, "set_epoch") as set_epoch:
        made.train()
    assert set_epoch.mock_calls == [mock.call(epoch) for epoch in range(3)]


def checkpoints_of_the_model_alone_resume(folder):
    params, saving = by_hand.CASES[0][0], dict(save_strategy="steps", save_steps=3)
    trainer(folder, params, save_only_model=True, max_steps=3, **saving).train()
    with logged() as lines:
        trainer(folder, params, max_steps=4).train(resume_from_checkpoint=True)
    assert lines == [START_FROM_ZERO]


def saved(folder):
    made = trainer(folder, by_hand.CASES[0][0], save_strategy="steps", save_steps=3, max_steps=4)
    made.train()


def resumed_by_one_worker(folder):
    made = trainer(folder, by_hand.CASES[0][0], max_steps=4)
    with logged() as lines:
        made.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    assert lines == ["the residuals of 2 workers are divided among 1; their sum stays the same"]


def checkpoints_that_do_not_fit_are_refused(folder):
    saved(folder / "run")
    files = folder / "run" / "checkpoint-3"
    rank, params = dist.get_rank(), by_hand.CASES[0][0]

    def refused(reason, checkpoint=files, by=(0, 1)):
        made = trainer(folder / "run", params, max_steps=4)
        kind, text = (ValueError, reason) if rank in by else (RuntimeError, "that it refuses")
        raised(kind, text, lambda: made.train(resume_from_checkpoint=str(checkpoint)))

    def changed(change):
        if rank == 0:
            change()
        dist.barrier()

    changed(lambda: shutil.copytree(files, folder / "moved"))
    changed(lambda: shutil.rmtree(files))
    refused("pass the folder as TrainingArguments(resume_from_checkpoint", folder / "moved")
    with logged() as lines:
        made = trainer(
            folder / "run", params, max_steps=4, resume_from_checkpoint=str(folder / "moved")
        )
        made.train(resume_from_checkpoint=str(folder / "moved"))
    assert not lines
    saved(folder / "run")
    changed(lambda: shutil.copy(files / "gluon_gc_0.pt", files / "gluon_gc_1.pt"))
    refused("rank", by=(1,))
    changed(lambda: os.remove(files / "gluon_gc_1.pt"))
    refused("those of ranks [1] are missing", by=(1,))
    plain = trainer(folder / "plain", params, save_strategy="steps", save_steps=3, max_steps=3)
    plain.remove_callback(CompressionCallback)
    plain.train()
    with logged() as lines:
        made = trainer(folder / "plain", params, max_steps=4)
        made.train(resume_from_checkpoint=True)
    assert lines == [START_FROM_ZERO]


def one_worker_is_refused(folder):
    raised(
        ValueError,
        "the tool has made a BertForSequenceClassification: start two or more workers",
        trainer(folder, {}).train,
    )


def reports_follow_the_steps(folder):
    for params, algorithm in by_hand.CASES:
        made = trainer(folder, params, algorithm, {"every": 2, "measure_error": 2})
        made.train()
        assert torch.equal(flat(made.model), by_hand_(params, algorithm)), params
        (callback,) = [c for c in made.callback_handler.callbacks if type(c) is CompressionCallback]
        steps = EPOCHS * by_hand.BATCHES
        assert callback.compression.reporter.last.step == steps - steps % 2
