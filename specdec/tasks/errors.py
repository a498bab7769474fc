"""What is wrong with a user's data."""


class TaskError(ValueError):
    """A task, its files or its vocabulary cannot be used; the message is one line."""
