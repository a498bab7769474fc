"""The error class of this package."""


class TrainingError(ValueError):
    """A training run cannot start or continue; one line, with the remedy."""
