"""Features that need a newer PyTorch raise an error that says so."""

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("missing", ["FSDPModule", "FSDPModule.set_custom_reduce_scatter"])
def test_fully_shard_needs_a_hook_that_older_ones_lack(monkeypatch, missing):
    import gluon_gc.torch as bps

    monkeypatch.delattr(f"torch.distributed.fsdp.{missing}")
    with pytest.raises(RuntimeError, match="^compress_reduce_scatter needs PyTorch 2.9, got 2"):
        bps.compress_reduce_scatter(torch.nn.Linear(1, 1))
