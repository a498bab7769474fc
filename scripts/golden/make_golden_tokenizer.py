"""Makes tests/golden/tokenizer, the vocabulary of demo/ as transformers saves it.

pip install transformers
python scripts/golden/make_golden_tokenizer.py
"""

import shutil
import tempfile
from pathlib import Path

from transformers import T5Tokenizer

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "tokenizer"
SENTINELS = 4


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, saved = Path(folder) / "source", Path(folder) / "saved"
        source.mkdir()
        shutil.copyfile(ROOT / "demo" / "vocabulary.model", source / "spiece.model")
        T5Tokenizer.from_pretrained(source, extra_ids=SENTINELS).save_pretrained(saved)
        GOLDEN.mkdir(exist_ok=True)
        shutil.copyfile(saved / "tokenizer.json", GOLDEN / "tokenizer.json")


if __name__ == "__main__":
    main()
