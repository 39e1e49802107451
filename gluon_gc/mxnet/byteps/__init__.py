"""The functions of byteps.mxnet, besides the trainer."""
