"""A pasted vLLM command line becomes a config, and a config becomes a command line.

`parse_command_line` reads what people paste; `to_command_line` writes the ``vllm serve`` line of a config.
"""

from kvsim.vllm_line.command_line import CommandLine, Ranks
from kvsim.vllm_line.meaning import VERSIONS, parse_command_line
from kvsim.vllm_line.printing import config_of_line, to_command_line
from kvsim.vllm_line.transfer import KVTransfer

__all__ = [
    "VERSIONS",
    "CommandLine",
    "KVTransfer",
    "Ranks",
    "config_of_line",
    "parse_command_line",
    "to_command_line",
]
