"""The errors that people see when the local AWS cannot do what they asked."""


class LocalAwsError(RuntimeError):
    """One sentence that says what went wrong and what to do; never a traceback."""


class HalfAliveError(LocalAwsError):
    """One of the two servers has died and the other still runs; only `up` or `down` help."""
