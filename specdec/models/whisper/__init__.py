"""Whisper, in all of its sizes."""

from specdec.models.whisper.whisper_config import WhisperConfig
from specdec.models.whisper.whisper_model import Whisper

__all__ = ["Whisper", "WhisperConfig"]
