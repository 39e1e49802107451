"""A short checksum of a network's parameters, to check that all workers have the same."""

import hashlib

from mxnet import gluon


def parameter_checksum(net: gluon.Block) -> str:
    """Return 16 hexadecimal digits that depend on every bit of the trained parameters.

    Batch norm's running statistics are left out, because each worker computes its own.
    """
    digest = hashlib.sha256()
    for parameter in net.collect_params().values():
        if parameter.grad_req != "null":
            digest.update(parameter.data().asnumpy().tobytes())
    return digest.hexdigest()[:16]
