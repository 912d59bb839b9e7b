"""The error that people see when the local AWS cannot do what they asked."""


class LocalAwsError(RuntimeError):
    """One sentence that says what went wrong and what to do; never a traceback."""
