"""Helpers that know nothing of decoding: files of the project, this machine, published figures."""
