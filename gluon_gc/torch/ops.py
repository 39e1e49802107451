"""The names of byteps.torch.ops, which BytePS scripts import."""

from . import Compression as Compression
from . import declare as declare
from . import init as init
from . import local_rank as local_rank
from . import local_size as local_size
from . import poll as poll
from . import push_pull as push_pull
from . import push_pull_async as push_pull_async
from . import push_pull_async_inplace as push_pull_async_inplace
from . import push_pull_inplace as push_pull_inplace
from . import rank as rank
from . import resume as resume
from . import shutdown as shutdown
from . import size as size
from . import suspend as suspend
from . import synchronize as synchronize
