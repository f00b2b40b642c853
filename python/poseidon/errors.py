"""What a call raises. The message says what happened, to which thing, and what to do. Called by: everything here."""


class Error(RuntimeError):
    """The call failed."""


class Invalid(Error):
    """The call or an argument is wrong. Nothing has changed."""


class Refused(Error):
    """The cluster, or this version of its client library, does not take this program."""


class Timeout(Error):
    """Nobody answered in time. The message names who."""


class Ended(Error):
    """The job has ended: it is done, or an operator stopped it. The message says which."""


class Rewound(Error):
    """The job went back after a loss. Parameters and state have the values of the client's iteration."""
