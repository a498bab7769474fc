"""The flags of a beam search; `runs.opened` refuses its settings in commands without them."""

from __future__ import annotations

import argparse

from specdec.texts.beams import LIBRARIES


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a search."""
    group = parser.add_argument_group("beam search")
    group.add_argument(
        "--num_beams",
        type=int,
        metavar="N",
        help="search for the likeliest texts with N beams, instead of the likeliest token each "
        "time; a draft makes it faster and changes nothing",
    )
    group.add_argument(
        "--num_return", type=int, metavar="N", help="write the N best texts (default: 1)"
    )
    group.add_argument(
        "--beam_rule",
        choices=LIBRARIES,
        help="whose beam search: T5X's, or that of Hugging Face's generate (default: t5x)",
    )
    group.add_argument(
        "--length_penalty",
        type=float,
        metavar="X",
        help="T5X's alpha (default: 0.6), or Hugging Face's length_penalty (default: 1)",
    )
