"""Features that need a newer PyTorch raise an error that says so."""

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
@pytest.mark.parametrize("missing", ["FSDPModule", "FSDPModule.set_custom_{}"])
def test_fully_shard_needs_a_hook_that_older_ones_lack(monkeypatch, missing, collective):
    import gluon_gc.torch as bps

    monkeypatch.delattr(f"torch.distributed.fsdp.{missing.format(collective)}")
    function = f"compress_{collective}"
    with pytest.raises(RuntimeError, match=f"^{function} needs PyTorch 2.9, got 2"):
        getattr(bps, function)(torch.nn.Linear(1, 1))
