"""Errors that the command line turns into one line and an exit code."""


class UserError(Exception):
    """A user's mistake: one line that says what was given, what was expected and what to try. Exit code 2."""


class ClusterError(Exception):
    """Other processes of the run, or the network, are not there: one line, exit code 1, to be tried again."""


class Preempted(Exception):
    """Stopped on purpose, with everything saved, to be started again with the same command. Exit code 3."""
