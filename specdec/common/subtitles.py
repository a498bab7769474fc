"""Subtitles: texts with their times, as SRT and as WebVTT (https://www.w3.org/TR/webvtt1/)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from specdec.common.schemas import Amount
from specdec.common.terminal import one_line

FORMATS = ("srt", "vtt")


class TimedText(TypedDict):
    """A segment of a transcript, with its start and end in seconds."""

    start: Amount
    end: Amount
    text: str


def subtitles(segments: Iterable[TimedText], kind: str) -> str:
    """Returns the contents of a subtitle file; `kind` is 'srt' or 'vtt'."""
    mark, blocks = {"srt": ",", "vtt": "."}[kind], ["WEBVTT\n"] if kind == "vtt" else []
    for segment in segments:
        if not (text := one_line(segment["text"]).strip()):
            continue
        if kind == "vtt":
            text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        number = [str(len(blocks) + 1)] if kind == "srt" else []
        times = " --> ".join(_clock(time, mark) for time in (segment["start"], segment["end"]))
        blocks.append("\n".join([*number, times, text, ""]))
    return "\n".join(blocks)


def _clock(seconds: float, mark: str) -> str:
    """Returns seconds as HH:MM:SS, then `mark` and thousandths."""
    seconds, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{mark}{thousandths:03}"
