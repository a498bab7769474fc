"""The error class of this package."""


class TaskError(ValueError):
    """A task, its files or its vocabulary cannot be used; the message is one line."""
