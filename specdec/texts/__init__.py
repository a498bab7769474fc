"""Runs of commands: an engine with its plan, sources of texts, and the decoded texts."""
