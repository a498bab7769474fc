"""The error class of this package."""


class TrainingError(ValueError):
    """A training run that cannot start or go on; one line with the remedy."""
