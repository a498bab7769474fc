"""Drafters made from a target and texts: models that are trained, and tables."""
