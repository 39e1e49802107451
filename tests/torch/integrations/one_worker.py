"""A process that is the only worker, in which no tool uses DistributedDataParallel."""

from pathlib import Path
from tempfile import TemporaryDirectory

import gluon_gc.torch as bps
from tests.torch.integrations import accelerate_jobs, lightning_jobs, transformers_jobs

bps.init()
with TemporaryDirectory() as folder:
    for jobs in (accelerate_jobs, lightning_jobs, transformers_jobs):
        jobs.one_worker_is_refused(Path(folder))
bps.shutdown()
