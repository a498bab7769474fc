"""Interfaces of models and families, and models' inputs, caches and attention between tokens."""
