"""Verifiers that give up exactness for speed or for another distribution.

They exist to replicate the papers that proposed them, and no run uses one by default. Each one's
docstring says that it is lossy, and so do certificates and benchmarks.
"""
