"""Schedules: how many tokens to draft. A new one is one file here; `types.Schedule` says what one
must and must not do."""

from specdec.schedules.fixed import Fixed

__all__ = ["Fixed"]
