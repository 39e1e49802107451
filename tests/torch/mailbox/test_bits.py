"""The bits of rounds through a mailbox: those of torch.distributed, and equal ones at all sites."""

from pathlib import Path

import pytest
import torch.distributed as dist

from gluon_gc.mailbox import objects
from gluon_gc.mailbox.store import Store
from tests.neutral.mailbox.runs import EVERY_5, Replay
from tests.torch.workers import run

from .job import Batches, Net, optimizer_of, parameters_digest

# Names match parameters of the model, whose last matrix is uncompressed.
OVERRIDES = {
    "onebit.*": {"compressor": "onebit", "scaling": True, "ef": "vanilla", "exchange": "gather"},
    "topk.*": {"compressor": "topk", "k": 0.1, "ef": "vanilla", "exchange": "gather"},
    "blocks.*": {"compressor": "blockwise", "ef": "vanilla", "exchange": "gather"},
}
STEPS, EVERY = 26, 4
VARIANTS = {
    "plain": {},
    "fragments": {"fragments": 2, "overlap": 1, "mix": 0.25},
}


def config_of(variant):
    return {
        "algorithm": {"name": "local_steps", "every": EVERY, **VARIANTS[variant]},
        "compression_params": None,
        "overrides": OVERRIDES,
        "optimizer": "AdamW",
        "steps": STEPS,
        "sleep": 0,
    }


def train_without_a_mailbox(folder):
    """Train in workers of torch.distributed, and write digests of their parameters."""
    for variant in VARIANTS:
        net = Net()
        config = config_of(variant)
        optimizer = optimizer_of(net, config)
        batches = Batches(dist.get_rank())
        for _ in range(STEPS):
            optimizer.zero_grad()
            batches.loss(net).backward()
            optimizer.step()
        optimizer.compression_state.close()
        Path(folder, f"{variant}.{dist.get_rank()}").write_text(parameters_digest(net))


@pytest.mark.parametrize("size", [2, 4])
def test_the_weights_are_those_of_torch_distributed_if_nobody_fails(size, tmp_path, workers):
    variables = {"BYTEPS_MIN_COMPRESS_BYTES": 0, "BYTEPS_PARTITION_BYTES": 2048}
    jobs = {}
    for variant in VARIANTS:
        settings = {"min_workers": size, "grace": 600}
        job = workers(str(tmp_path / variant), settings=settings, round_grace=0.05)
        job.variables.update({name: str(value) for name, value in variables.items()})
        jobs[variant] = job, [job.start(f"w{rank}", **config_of(variant)) for rank in range(size)]
    run(train_without_a_mailbox, size, variables, folder=str(tmp_path))
    for variant, (job, started) in jobs.items():
        for rank, worker in enumerate(started):
            job.wait_for_end(worker)
            expected = Path(tmp_path, f"{variant}.{rank}").read_text()
            assert worker.facts["digest"] == expected, variant


@pytest.mark.parametrize("every", [5, "0.4 s"], ids=str)
def test_each_worker_of_a_site_with_fully_shard_has_the_rounds_of_its_shard(
    tmp_path, workers, every
):
    waits = {"min_workers": 2, "grace": 1} if every == 5 else {"grace": 3}
    job = workers(str(tmp_path / "run"), settings=waits)
    algorithm = {"name": "local_steps", "every": every}
    options = {"job": "work_on_shards", "algorithm": algorithm, "steps": 20, "sleep": 0.05}
    sites = [job.start_site(name, 2, **options) for name in ("w0", "w1")]
    for worker in (*sites[0], *sites[1]):
        job.wait_for_end(worker)
    for first, second in sites:
        assert first.facts["counts"] == second.facts["counts"] != {}
    if every != 5:
        return  # the sites end after different numbers of rounds
    for shard, pair in enumerate(zip(*sites)):
        one, other = (worker.facts for worker in pair)
        assert one == other and one["anchors"] == one["parameters"] and one["size"] == 2
        store = Store(f"{job.url}/shard-{shard}-of-2")
        for number in range(1, 5):
            name = objects.result_name("difference", number)
            counted = objects.unpack(name, store.get(name)).header["counted"]
            assert [entry["worker"][:2] for entry in counted] == ["w0", "w1"]
            assert all(entry["loss"] is not None for entry in counted)
    assert sites[0][0].facts["anchors"] != sites[0][1].facts["anchors"]


def test_a_site_of_two_processes_is_one_worker(url, workers):
    job = workers(url, settings={"grace": 1.0, "keep": 3})
    one, two = job.start_site("w0", 2)
    other = job.start("w1")
    job.wait_for_rounds(3, one, other)
    other.kill()
    third = job.start("w2")
    job.wait_for_rounds(3, one, third)
    assert job.stop() == [one, two, third]
    replay = Replay(url, job.config)
    replay.require_equal_bits(job.workers)
    for worker in (one, third):
        replay.require_nothing_lost(worker)
    for fact in ("worker", "seed", "size", "digest", "anchors"):
        assert one.facts[fact] == two.facts[fact] != ""
    entries = [entry for each in replay.rounds for entry in each.counted]
    weights = {entry["weight"] for entry in entries if entry["worker"].startswith("w0")}
    assert 2 * EVERY_5["every"] in weights
    assert all(weight % 2 == 0 for weight in weights)  # that at a site's end may be smaller
    assert one.facts["worker"] != third.facts["worker"]
