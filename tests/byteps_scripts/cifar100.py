"""Trains on CIFAR-100, with the arguments and calls of BytePS's train_cifar100_byteps_gc.py."""

import time

import gluoncv
import mxnet as mx
import shared
from gluoncv.data import transforms as gcv_transforms
from gluoncv.model_zoo import get_model
from gluoncv.utils import makedirs
from mxnet import autograd as ag
from mxnet import gluon
from mxnet.gluon.data.vision import transforms

import gluon_gc as bps

gluoncv.utils.check_version("0.6.0")
DEFAULTS = {
    "batch-size": 32,
    "num-gpus": 0,
    "model": "resnet",
    "num-data-workers": 4,
    "num-epochs": 200,
    "lr": 0.1,
    "momentum": 0.9,
    "wd": 0.0005,
    "lr-decay": 0.1,
    "lr-decay-epoch": "100,150",
    "warmup-lr": 0.0,
    "warmup-epochs": 0,
    "mode": "",
    "save-dir": "params",
    "logging-file": "baseline",
    "compressor": "",
    "ef": "",
    "compress-momentum": "",
    "onebit-scaling": False,
    "k": 1.0,
    "normalize": "max",
    "fp16-pushpull": False,
}
MEAN, DEVIATION = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def loader(opt, train, augment, **kwargs):
    whole = [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
    images = gluon.data.vision.CIFAR100(train=train).shard(bps.size(), bps.rank())
    return gluon.data.DataLoader(
        images.transform_first(transforms.Compose([*augment, *whole])),
        batch_size=opt.batch_size,
        shuffle=train,
        num_workers=opt.num_data_workers,
        **kwargs,
    )


def test(net, ctx, val_data):
    metric = mx.metric.Accuracy()
    for batch in val_data:
        data, label = (gluon.utils.split_and_load(array, ctx_list=ctx) for array in batch)
        metric.update(label, [net(x) for x in data])
    return metric.get()[1]


def train(opt, net, ctx, logger):
    net.initialize(mx.init.Xavier(), ctx=ctx)
    augment = [gcv_transforms.RandomCrop(32, pad=4), transforms.RandomFlipLeftRight()]
    train_data = loader(opt, True, augment, last_batch="discard")
    val_data = loader(opt, False, [])

    params = net.collect_params()
    compression_params = {
        "compressor": opt.compressor,
        "ef": opt.ef,
        "momentum": opt.compress_momentum,
        "scaling": opt.onebit_scaling,
        "k": opt.k,
        "normalize": opt.normalize,
        "fp16": opt.fp16_pushpull,
    }
    optimizer = "sgd" if opt.compressor else "nag"
    rate, batches = opt.lr * bps.size() / bps.local_size(), 50000 // (opt.batch_size * bps.size())
    decay = [int(epoch) for epoch in opt.lr_decay_epoch.split(",")]
    lr_scheduler = shared.schedule(opt, "step", rate, batches, decay)
    optimizer_params = {"lr_scheduler": lr_scheduler, "wd": opt.wd, "momentum": opt.momentum}
    trainer = bps.DistributedTrainer(
        params, optimizer, optimizer_params, compression_params=compression_params
    )
    train_metric = mx.metric.Accuracy()
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()

    bps.byteps_declare_tensor("acc")
    for epoch in range(opt.num_epochs):
        tic, total = time.time(), 0
        train_metric.reset()
        for batch in train_data:
            data, label = (gluon.utils.split_and_load(array, ctx_list=ctx) for array in batch)
            with ag.record():
                output = [net(x) for x in data]
                losses = [loss_fn(yhat, y) for yhat, y in zip(output, label)]
            for loss in losses:
                loss.backward()
            trainer.step(opt.batch_size)
            total += sum(loss.sum().asscalar() for loss in losses)
            train_metric.update(label, output)
        shown = epoch, total / (opt.batch_size * len(train_data)), time.time() - tic
        logger.info("[Epoch %d] loss: %f\ttime cost: %f lr=%f", *shown, trainer.learning_rate)

        acc = mx.nd.array([train_metric.get()[1], test(net, ctx, val_data)], ctx=ctx[0])
        bps.byteps_push_pull(acc, name="acc", is_average=False)
        acc /= bps.size()
        train_acc, val_acc = acc[0].asscalar(), acc[1].asscalar()
        if bps.rank() == 0:
            logger.info("[Epoch %d] training: accuracy=%f", epoch, train_acc)
            logger.info("[Epoch %d] validation: accuracy=%f", epoch, val_acc)
    net.save_parameters(f"{opt.save_dir}/cifar100-{opt.model}-{opt.num_epochs - 1}.params")


def main():
    opt = shared.arguments(DEFAULTS)
    shared.trust_made_files()
    bps.init()
    logger = shared.log_to(f"cifar100-{bps.size()}-{opt.logging_file}.log")
    logger.info(opt)
    context = mx.cpu(bps.local_rank())
    net = get_model(opt.model, classes=100)
    makedirs(opt.save_dir)
    if opt.mode == "hybrid":
        net.hybridize()
    train(opt, net, [context], logger)


if __name__ == "__main__":
    main()
