"""Errors that a person can cause, and the exit codes they lead to."""

from __future__ import annotations

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3


class UserError(Exception):
    """What is wrong, where, and what to do, in one line; printed to stderr without a traceback.

    `exit_code` is 2 for usage and configuration, 3 when the environment lacks something.
    """

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class EnvironmentLacksError(UserError):
    """The machine lacks something that the command needs; the message names it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_ENVIRONMENT)
