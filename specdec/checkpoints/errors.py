"""The one error of this package."""


class CheckpointError(ValueError):
    """A directory, file or tree of parameters that cannot be used; one line with the remedy."""
