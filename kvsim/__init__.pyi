from kvsim.api import Result as Result
from kvsim.api import read_trace as read_trace
from kvsim.api import run as run
from kvsim.config import RunConfig as RunConfig
from kvsim.errors import UserError as UserError

__version__: str
