"""Base classes that families share: of configs, networks, models and checkpoints."""
