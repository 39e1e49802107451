"""Trains on MNIST, with the arguments and calls of BytePS's train_gluon_mnist_byteps.py."""

import logging
import time

import mxnet as mx
import shared
from gluoncv.utils import makedirs
from mxnet import autograd, gluon, nd
from mxnet.gluon.data.vision import MNIST

import gluon_gc.mxnet as bps

args = shared.arguments(
    {
        "batch-size": 64,
        "dtype": "float32",
        "epochs": 5,
        "j": 2,
        "lr": 0.01,
        "momentum": 0.9,
        "no-cuda": False,
    }
)
shared.trust_made_files()
logging.basicConfig(level=logging.INFO)
logging.info(args)


def loader(train, **kwargs):
    images = MNIST(train=train, transform=shared.as_planes(args.dtype))
    return gluon.data.DataLoader(images, args.batch_size, train, **kwargs)


train_data = loader(True, num_workers=args.j, last_batch="discard")
val_data = loader(False, num_workers=0)
bps.init()
context = mx.cpu(bps.local_rank())
num_workers = bps.size()

model = shared.mnist_network()
model.cast(args.dtype)
model.initialize(mx.init.MSRAPrelu(), ctx=context)
model.summary(nd.ones((1, 1, 28, 28), ctx=context))
model.hybridize()

optimizer_params = {"momentum": args.momentum, "learning_rate": args.lr * num_workers}
trainer = bps.DistributedTrainer(model.collect_params(), "sgd", optimizer_params)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
metric, validation = mx.metric.Accuracy(), mx.metric.Accuracy()

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

    for batch in val_data:
        data, label = (array.as_in_context(context) for array in batch)
        validation.update([label], [model(data.astype(args.dtype, copy=False))])
    if bps.rank() == 0:
        logging.info("Epoch[%d]\tTime cost=%f", epoch, time.time() - tic)
        shown = epoch, metric.get()[1], validation.get()[1]
        logging.info("Epoch[%d]\tTrain: accuracy=%f\tValidation: accuracy=%f", *shown)

# Not in BytePS's script; the test compares the workers' parameters.
makedirs(f"params{bps.rank()}")
model.save_parameters(f"params{bps.rank()}/plain_mnist.params")
