"""Helpers that are independent of decoding: project files, this machine, published figures."""
