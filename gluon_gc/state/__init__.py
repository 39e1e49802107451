"""States that outlive a step: named arrays, their file, their checks, and who continues from them.

`file` writes and reads the arrays of a worker. `chunks` joins the states of chunks to such arrays,
and cuts them again. `fitting` checks whether they fit, and `division` divides them among workers.
"""

from .file import LOCAL as LOCAL
from .file import OF_ALL as OF_ALL
from .file import STREAM as STREAM
from .file import Arrays as Arrays
from .file import Key as Key
from .file import Layout as Layout
from .file import States as States
from .file import header as header
from .file import is_pickle as is_pickle
from .file import read as read
from .file import replacing as replacing
from .file import write as write
