"""Trains on MNIST, with the arguments and calls of BytePS's train_gluon_mnist_byteps_gc.py.

It also has the arguments for compression of the scripts for CIFAR-100 and ImageNet.
"""

import argparse
import logging
import time

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon.data.vision import MNIST, datasets

import gluon_gc.mxnet as bps

DEFAULTS = {
    "batch-size": 64,
    "dtype": "float32",
    "epochs": 5,
    "j": 2,
    "lr": 0.01,
    "wd": 0.0001,
    "momentum": 0.9,
    "no-cuda": False,
    "compressor": "",
    "ef": "",
    "compress-momentum": "",
    "onebit-scaling": False,
    "k": 1,
    "normalize": "max",
    "fp16-pushpull": False,
    "logging-file": "baseline",
}
parser = argparse.ArgumentParser()
for name, default in DEFAULTS.items():
    kwargs = {"action": "store_true"} if default is False else {"type": type(default)}
    parser.add_argument(f"--{name}", default=default, **kwargs)
args = parser.parse_args()
# Gluon reads generated images, whose checksums differ, without a download.
gluon.utils.check_sha1 = datasets.check_sha1 = lambda path, sha1: True
bps.init()
# As published: the root logger writes to a file and to stderr, from INFO on.
logger = logging.getLogger("")
logger.setLevel(logging.INFO)
logger.addHandler(logging.FileHandler(f"mnist-{bps.size()}-{args.logging_file}.log"))
logger.addHandler(logging.StreamHandler())
logger.info(args)


def as_planes(image, label):
    return nd.transpose(image.astype(args.dtype) / 255 - 0.5, (2, 0, 1)), label


def loader(train, **kwargs):
    # As published: each worker has all images, in its own order.
    images = MNIST(train=train, transform=as_planes)
    return gluon.data.DataLoader(images, args.batch_size, train, num_workers=args.j, **kwargs)


train_data, val_data = loader(True, last_batch="discard"), loader(False)
context = mx.cpu(bps.local_rank())
model = gluon.nn.HybridSequential()
with model.name_scope():
    for channels in (20, 50):
        model.add(gluon.nn.Conv2D(channels=channels, kernel_size=5, activation="relu"))
        model.add(gluon.nn.MaxPool2D(pool_size=2, strides=2))
    model.add(gluon.nn.Flatten(), gluon.nn.Dense(512, activation="relu"), gluon.nn.Dense(10))
model.cast(args.dtype)
model.initialize(mx.init.MSRAPrelu(), ctx=context)
model.summary(nd.ones((1, 1, 28, 28), ctx=context))
model.hybridize()

params = model.collect_params()
optimizer_params = {
    "momentum": args.momentum,
    "wd": args.wd,
    "learning_rate": args.lr * bps.size(),
}
compression_params = {
    "compressor": args.compressor,
    "ef": args.ef,
    "momentum": args.compress_momentum,
    "scaling": args.onebit_scaling,
    "k": args.k,
    "normalize": args.normalize,
    "fp16": args.fp16_pushpull,
}
trainer = bps.DistributedTrainer(
    params, "sgd", optimizer_params, compression_params=compression_params
)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
metric, validation = mx.metric.Accuracy(), mx.metric.Accuracy()

bps.byteps_declare_tensor("acc")
for epoch in range(args.epochs):
    tic = time.time()
    metric.reset()
    for batch in train_data:
        data, label = (array.as_in_context(context) for array in batch)
        with autograd.record():
            output = model(data)
            loss = loss_fn(output, label)
        loss.backward()
        trainer.step(args.batch_size)
        metric.update([label], [output])
    logger.info("Epoch[%d]\tTime cost=%f", epoch, time.time() - tic)

    validation.reset()
    for batch in val_data:
        data, label = (array.as_in_context(context) for array in batch)
        validation.update([label], [model(data)])
    acc = mx.nd.array([metric.get()[1], validation.get()[1]], ctx=context)
    bps.byteps_push_pull(acc, name="acc", is_average=False)
    acc /= bps.size()
    if bps.rank() == 0:
        shown = epoch, acc[0].asscalar(), acc[1].asscalar()
        logger.info("Epoch[%d]\tTrain: accuracy=%f\tValidation: accuracy=%f", *shown)

# Not in BytePS's script; the test compares the workers' parameters.
model.save_parameters(f"{bps.rank()}.params")
