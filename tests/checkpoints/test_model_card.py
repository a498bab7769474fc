"""The README.md of a checkpoint, word for word: pytest tests/checkpoints/test_model_card.py"""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from specdec import checkpoints, cli
from specdec.checkpoints import model_card
from specdec.checkpoints.fingerprint import fingerprint
from specdec.checkpoints.model_card import ModelCard
from specdec.common import demo
from specdec.training import cards

FULL = """\
---
library_name: specdec
license: mit
base_model:
- google/t5
tags:
- jax
- speculative-decoding
- t5
---

# small

A drafter.

## Made from

- target: `google/t5@main`
- initial checkpoint: `begun`

## Figures

- alpha: 0.9000
- speed: 2.00

## Command

```bash
specdec train '--text=a b'
```

## Settings

```gin
STEPS = 2
```

## License

The license is mit, which the cards of its sources name.
"""

SHORT = """\
---
library_name: specdec
license: unknown
tags:
- jax
- speculative-decoding
- gpt2
---

# bare

A part.

## License

The license is unknown. Write it into `license` above before you publish this checkpoint.
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, license in (("begun", "mit"), ("other", "apache-2.0")):
        (tmp_path / name).mkdir()
        card = f"---\ntags:\n- a\nlicense: {license}\n---\n\n# {name}\n"
        (tmp_path / name / "README.md").write_text(card)
    return tmp_path


def card(**changes) -> ModelCard:
    sources = {"target": "google/t5@main", "initial checkpoint": "begun", "texts": None}
    fields = {"name": "small", "about": "A drafter.", "family": "t5", "sources": sources}
    fields |= {"command": ["specdec", "train", "--text=a b"], "settings": "\nSTEPS = 2\n"}
    return ModelCard(**fields | {"figures": {"alpha": "0.9000", "speed": "2.00"}} | changes)


def test_a_card_has_what_is_known(folder):
    assert card().text() == FULL
    assert yaml.safe_load(FULL.split("---")[1])["base_model"] == ["google/t5"]
    assert ModelCard("bare", "A part.", "gpt2", {}, []).text() == SHORT
    card().write(folder / "other")
    assert (folder / "other" / "README.md").read_text() == FULL


def test_a_license_is_named_if_the_sources_agree(folder):
    def stated(*paths: str) -> str:
        made = card(sources=dict(zip("abc", paths, strict=False))).text()
        return yaml.safe_load(made.split("---")[1])["license"]

    assert stated("begun") == stated("begun", "begun", "absent") == "mit"
    assert stated("begun", "other") == stated("absent") == "unknown"
    (folder / "begun" / "README.md").write_text("---\ntags: []\n---\nlicense: mit\n")
    assert stated("begun") == "unknown"
    assert stated("demo/target") == stated("demo/draft") == "apache-2.0"


def test_a_folder_of_this_machine_is_no_base_model(folder):
    (folder / "google" / "t5").mkdir(parents=True)
    assert "base_model" not in card(sources={"target": "google/t5"}).text()
    assert "base_model" not in card(sources={"target": "demo/draft"}).text()


PART = """\
---
library_name: specdec
license: apache-2.0
tags:
- jax
- speculative-decoding
- t5_draft
---

# part

A part of another checkpoint, unchanged to the bit: 460,288 parameters (SIZES). It drafts for that \
model in speculative decoding, and drafts better after training.

## Made from

- checkpoint: `demo/draft`

## Command

```bash
specdec trim demo/draft part --shared_encoder
```

## License

The license is apache-2.0, which the cards of its sources name.
"""


def test_a_part_has_a_card_which_another_format_keeps(folder, capsys):
    assert cli.main(["trim", "demo/draft", "part", "--shared_encoder"]) == 0
    written, line = (folder / "part" / "README.md").read_text(), capsys.readouterr().out
    count, sizes = line.split("wrote ")[1].split(": ")[1].split(" parameters (")
    expected = PART.replace("460,288", count).replace("SIZES", sizes.partition(")")[0])
    assert written == expected
    assert cli.main(["check", "part"]) == 0
    before = fingerprint("part")
    (folder / "part" / "README.md").write_text("changed")
    assert fingerprint("part") == before
    (folder / "part" / "README.md").write_text(written)
    assert cli.main(["convert", "part", "other_format", "--format=t5x"]) == 0
    assert (folder / "other_format" / "README.md").read_text() == written
    assert checkpoints.config_from("other_format") == checkpoints.config_from("part")


TRAINED = """\
---
library_name: specdec
license: apache-2.0
tags:
- jax
- speculative-decoding
- t5
---

# learned

A model with 722,048 parameters, trained for 20 steps. As a drafter of speculative decoding it \
proposes tokens, and its target decides which of them are kept.

## Made from

- target: `demo/target`

## Figures

- loss: 1.5000
- validation alpha: 0.2500
- certificate: CERTIFIED

## License

The license is apache-2.0, which the cards of its sources name.
"""


def test_an_export_has_the_figures_of_its_step(folder):
    lines = [
        {"step": 10, "loss": 2.0, "rate": 0.1},
        {"step": 20, "loss": 1.5, "rate": 0.1},
        {"step": 20, "validation_alpha": 0.25, "validation_mbsu": None},
        {"step": 30, "validation_alpha": 0.2},
    ]
    export = folder / "learned" / "export" / "checkpoint_20"
    shutil.copytree(demo.path("draft"), export)
    log = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "learned" / "log.jsonl").write_text(log)
    shutil.copytree(export, folder / "learned" / "export" / "heads" / "checkpoint_20")
    sources, figures = {"target": "demo/target"}, {"certificate": "CERTIFIED"}
    cards.write(folder / "learned", "learned", sources, [], "", figures)
    assert (export / model_card.FILE).read_text() == TRAINED
    part = folder / "learned" / "export" / "heads" / "checkpoint_20" / model_card.FILE
    assert part.read_text() == TRAINED.replace("# learned", "# heads")
