"""The error class of this package."""


class TrainingError(ValueError):
    """A training run cannot start or continue; the message is one line with the remedy."""
