"""Whisper, in all of its sizes."""

from specdec.models.whisper.whisper_model import Whisper, WhisperConfig

__all__ = ["Whisper", "WhisperConfig"]
