"""The one exception that a user ever sees."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend: one line naming file, line or field, the value found and what was expected.

    The command line prints it as ``error: <message>`` and exits with code 2; the Python API raises it.
    """


class ConfigError(UserError):
    """A `UserError` about a config that was read without fault: the keys are right, their values don't go together."""
