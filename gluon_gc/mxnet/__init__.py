"""The front end of MXNet Gluon."""

from .requirements import import_mxnet

import_mxnet()
