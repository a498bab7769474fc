"""Copies what the tests need of the golden T5X checkpoints into tests/golden.

  python scripts/golden/make_golden.py SOURCE

SOURCE holds one folder per model with config.json, golden.npz, t5x_native and t5x_orbax, written by
T5X itself. tests/golden/README.md says what is kept.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np

MODELS = ("v1_0", "v1_1", "wide_heads")
COMPLETE = "wide_heads"  # keeps its optimizer state: it must be seen to be skipped
ARRAYS = (
    "encoder_input_tokens",
    "decoder_input_tokens",
    "logits",
    "greedy",
    "beam4",
    "beam4_scores",
)


def copy_model(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    shutil.copyfile(source / "config.json", target / "config.json")
    with np.load(source / "golden.npz") as golden:
        np.savez_compressed(target / "golden.npz", **{name: golden[name] for name in ARRAYS})
    for checkpoint in ("t5x_native", "t5x_orbax"):
        for file in sorted((source / checkpoint).rglob("*")):
            if file.is_file() and kept(file, complete=source.name == COMPLETE):
                copy = target / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


def kept(file: Path, complete: bool) -> bool:
    optimizer = file.parent.name.startswith("state.")
    # A success mark holds the path that was written to, and nothing else.
    return file.name != "commit_success.txt" and (complete or not optimizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    source = parser.parse_args().source
    golden = Path(__file__).resolve().parents[2] / "tests" / "golden"
    for model in MODELS:
        shutil.rmtree(golden / model, ignore_errors=True)
        copy_model(source / model, golden / model)


if __name__ == "__main__":
    main()
