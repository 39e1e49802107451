"""Trains on ImageNet, with the arguments and calls of BytePS's train_gluon_imagenet_byteps_gc.py.

It has the arguments that the published commands use.
"""

import math
import time

import mxnet as mx
import shared
from gluoncv.model_zoo import get_model
from gluoncv.utils import makedirs
from mxnet import autograd as ag
from mxnet import gluon

import gluon_gc as bps

DEFAULTS = {
    "rec-train": "train.rec",
    "rec-train-idx": "train.idx",
    "rec-val": "val.rec",
    "rec-val-idx": "val.idx",
    "use-rec": False,
    "batch-size": 32,
    "num-gpus": 0,
    "num-data-workers": 4,
    "num-epochs": 3,
    "lr": 0.1,
    "momentum": 0.9,
    "wd": 0.0001,
    "lr-mode": "step",
    "lr-decay": 0.1,
    "lr-decay-epoch": "40,60",
    "warmup-lr": 0.0,
    "warmup-epochs": 0,
    "mode": "",
    "input-size": 224,
    "crop-ratio": 0.875,
    "save-dir": "params",
    "logging-file": "train_imagenet.log",
    "compressor": "",
    "ef": "",
    "compress-momentum": "",
    "onebit-scaling": False,
    "k": 1,
    "fp16-pushpull": False,
}
MEAN, DEVIATION = (123.68, 116.779, 103.939), (58.393, 57.12, 57.375)
COLOURS = dict(zip(("mean_r", "mean_g", "mean_b", "std_r", "std_g", "std_b"), MEAN + DEVIATION))
AUGMENTATION = dict(
    rand_mirror=True,
    random_resized_crop=True,
    max_aspect_ratio=4 / 3,
    min_aspect_ratio=3 / 4,
    max_random_area=1,
    min_random_area=0.08,
    brightness=0.4,
    saturation=0.4,
    contrast=0.4,
    pca_noise=0.1,
)


def records(opt, file, index, **kwargs):
    return mx.io.ImageRecordIter(
        path_imgrec=file,
        path_imgidx=index,
        preprocess_threads=opt.num_data_workers,
        batch_size=opt.batch_size,
        data_shape=(3, opt.input_size, opt.input_size),
        num_parts=bps.size(),
        part_index=bps.rank(),
        device_id=bps.local_rank(),
        **COLOURS,
        **kwargs,
    )


def on_devices(batch, ctx):
    return (gluon.utils.split_and_load(array, ctx) for array in (batch.data[0], batch.label[0]))


def test(net, ctx, val_data):
    """Return top-1 and top-5 error."""
    top1, top5 = mx.metric.Accuracy(), mx.metric.TopKAccuracy(5)
    val_data.reset()
    for batch in val_data:
        data, label = on_devices(batch, ctx)
        outputs = [net(x) for x in data]
        top1.update(label, outputs)
        top5.update(label, outputs)
    return 1 - top1.get()[1], 1 - top5.get()[1]


def train(opt, net, ctx, train_data, val_data, logger):
    net.initialize(mx.init.MSRAPrelu(), ctx=ctx)
    optimizer = "sgd" if opt.compressor else "nag"
    rate = opt.lr * bps.size() / bps.local_size()
    batches = 1281167 // (opt.batch_size * bps.size())
    decay = [int(epoch) - opt.warmup_epochs for epoch in opt.lr_decay_epoch.split(",")]
    lr_scheduler = shared.schedule(opt, opt.lr_mode, rate, batches, decay)
    optimizer_params = {"wd": opt.wd, "momentum": opt.momentum, "lr_scheduler": lr_scheduler}
    compression_params = {
        "compressor": opt.compressor,
        "ef": opt.ef,
        "momentum": opt.compress_momentum,
        "scaling": opt.onebit_scaling,
        "k": opt.k,
    }
    trainer = bps.DistributedTrainer(
        net.collect_params(), optimizer, optimizer_params, compression_params=compression_params
    )
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=True)
    metric, best = mx.metric.Accuracy(), 1

    def save(name):
        net.save_parameters(f"{opt.save_dir}/{name}.params")
        trainer.save_states(f"{opt.save_dir}/{name}.states")

    for epoch in range(opt.num_epochs):
        tic = time.time()
        train_data.reset()
        metric.reset()
        for batch in train_data:
            data, label = on_devices(batch, ctx)
            with ag.record():
                outputs = [net(x) for x in data]
                losses = [loss_fn(yhat, y) for yhat, y in zip(outputs, label)]
            for loss in losses:
                loss.backward()
            trainer.step(opt.batch_size)
            metric.update(label, outputs)
        logger.info("[Epoch %d] time cost: %f", epoch, time.time() - tic)
        top1, top5 = test(net, ctx, val_data)
        logger.info("[Epoch %d] training: accuracy=%f", epoch, metric.get()[1])
        logger.info("[Epoch %d] validation: err-top1=%f err-top5=%f", epoch, top1, top5)
        if top1 < best:
            best = top1
            save(f"{best:.4f}-imagenet-{opt.model}-{epoch}-best")
    save(f"imagenet-{opt.model}-{opt.num_epochs - 1}")


def main():
    opt = shared.arguments(DEFAULTS, model=str)
    bps.init()
    logger = shared.log_to(f"imagenet-{bps.size()}-{opt.logging_file}.log")
    logger.info(opt)
    context = mx.cpu(bps.local_rank())
    net = get_model(opt.model, ctx=context, pretrained=False, classes=1000)
    resize = math.ceil(opt.input_size / opt.crop_ratio)
    train_data = records(opt, opt.rec_train, opt.rec_train_idx, shuffle=True, **AUGMENTATION)
    val_data = records(opt, opt.rec_val, opt.rec_val_idx, shuffle=False, resize=resize)
    makedirs(opt.save_dir)
    if opt.mode == "hybrid":
        net.hybridize(static_alloc=True, static_shape=True)
    train(opt, net, [context], train_data, val_data, logger)


if __name__ == "__main__":
    main()
