"""scripts/peers without the engines that it compares: pytest tests/measure/test_peers.py"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from specdec.common.records import RecordsError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "peers"))
import compare  # noqa: E402
import table  # noqa: E402
import turns  # noqa: E402
from table import Record  # noqa: E402

ABOUT = {"gin": "GAMMA = 3\n", "threads": 2}


class Reversing:
    """An engine that is not one."""

    def generate(self, ids: list[int]) -> list[int]:
        return ids[::-1]


def measured(**options) -> list[Record]:
    ready = {name: Reversing() for name in ("alone", "speculative", "huggingface")}
    return list(turns.measure(ready, {5: [7, 1], 9: [8, 1]}, **options))


def record(peer: str, text: int, seconds: float, repeat: int = 0, tokens=(4, 1)) -> Record:
    return Record(peer, text, repeat, seconds, list(tokens))


def test_every_engine_is_first_second_and_third():
    records = measured(repeats=2)
    orders = [[one.peer for one in records[i : i + 3]] for i in range(0, 12, 3)]
    a, b, c = "alone", "speculative", "huggingface"
    assert orders == [[a, b, c], [b, c, a], [b, c, a], [c, a, b]]
    assert [(one.repeat, one.text) for one in records[::3]] == [(0, 5), (0, 9), (1, 5), (1, 9)]
    assert all(one.tokens == {5: [1, 7], 9: [1, 8]}[one.text] for one in records)


def test_each_padded_length_is_warmed_up():
    """Each has a program of its own, whose first generations are slow."""

    class Counting(Reversing):
        def __init__(self):
            self.lengths: list[int] = []

        def generate(self, ids: list[int]) -> list[int]:
            self.lengths.append(16 if len(ids) <= 16 else 32)
            return super().generate(ids)

    loaded = {"alone": Counting()}
    ready = turns.warmed_up(loaded, 5 * [[7] * 9] + [[7] * 20], (16, 32), run=None)
    assert ready == loaded
    assert sorted(loaded["alone"].lengths) == [*turns.WARM_UPS * [16], *turns.WARM_UPS * [32]]


def test_an_interrupted_run_goes_on(tmp_path):
    path = tmp_path / "out.jsonl"
    whole, names = measured(repeats=2), ["alone", "speculative", "huggingface"]
    file = table.File(str(path), ABOUT)
    assert file.resume(names) == set()
    for one in whole[:8]:  # two turns, and two engines of the third
        file.write(one)
    with path.open("a") as torn:
        torn.write('{"peer": "hugg')
    done = table.File(str(path), ABOUT).resume(names)
    assert done == {(0, 5), (0, 9)}
    assert table.read(path) == whole[:6]
    rest = measured(repeats=2, skip=done)
    assert [one[:3] for one in rest] == [one[:3] for one in whole[6:]]


@pytest.mark.parametrize(
    ("now", "named"),
    [
        (ABOUT | {"gin": "GAMMA = 5\n"}, "begun with GAMMA = 3, and now it is 5"),
        (ABOUT | {"threads": 1}, "begun with threads = 2, and now it is 1"),
    ],
)
def test_a_file_of_other_settings_is_refused(tmp_path, now, named):
    path = tmp_path / "out.jsonl"
    table.File(str(path), ABOUT).resume(())
    with pytest.raises(RecordsError, match=named):
        table.File(str(path), now)
    assert json.loads(Path(f"{path}.about.json").read_text()) == ABOUT


def test_the_table_by_hand():
    records = [record("ctranslate2_int8", text, 3.0, tokens=[9, 1]) for text in (0, 1)]
    for repeat, seconds in enumerate([1.0, 5.0, 2.0]):  # the median is 2
        records += [record("alone", text, seconds, repeat) for text in (0, 1)]
        records += [record("speculative", text, 1.0, repeat) for text in (0, 1)]
    records += [record("ctranslate2_int8", 0, 3.0, 1), record("ctranslate2_int8", 1, 3.0, 1)]
    records += [record("ctranslate2_int8", text, 3.0, 2) for text in (0, 1)]
    records.append(record("alone", 2, 99.0))  # of a turn that was cut short
    header, _, *rows = table.lines(records)
    assert header.startswith("| engine | seconds | times specdec alone (95 %) | times specdec spec")
    assert rows == [
        "| specdec alone | 4.000 | 1.00 (1.00 to 1.00) | 2.00 (2.00 to 2.00) | 1000.00 | 6 of 6 |",
        "| specdec speculative | 2.000 | 0.50 (0.50 to 0.50) | 1.00 (1.00 to 1.00) | 500.00 "
        "| 6 of 6 |",
        "| CTranslate2 int8 | 6.000 | 1.50 (1.50 to 1.50) | 3.00 (3.00 to 3.00) | 1500.00 "
        "| 4 of 6 |",
    ]


def test_the_interval_is_over_texts_and_paired():
    seconds = {"alone": [1.0, 10.0], "speculative": [2.0, 20.0], "huggingface": [3.0, 10.0]}
    records = [record(peer, i, s) for peer, both in seconds.items() for i, s in enumerate(both)]
    *_, twice, uneven = table.lines(records)
    assert " 2.00 (2.00 to 2.00) " in twice  # whichever texts are drawn
    assert " 1.18 (1.00 to 3.00) " in uneven


def cells(device: str, name: str) -> dict[str, list[str]]:
    """Returns the table of a committed measurement: the cells of each engine."""
    records = table.read(ROOT / "docs" / "results" / device / "peers" / f"{name}.jsonl")
    rows = [line.strip("| ").split(" | ") for line in list(table.lines(records))[2:]]
    return {first: rest for first, *rest in rows}


def test_the_page_has_what_the_lines_say():
    page = (ROOT / "docs" / "log" / "performance-log.md").read_text(encoding="utf-8")
    names = "base_ende", "large_ende", "large_multi30k"
    tables = [cells("amd_epyc_avx512_2_cores", name) for name in names]
    for engine in tables[0]:
        own = [one[engine] for one in tables if engine in one]
        figures = [f"{ms} ({over.split()[0]})" for _, _, over, ms, _ in own]
        figures += [""] * (len(names) - len(own))
        identical = ", ".join(one[-1].replace(" of ", "/") for one in own)
        assert f"| {' | '.join([engine, *figures, identical])} |" in page
    for engine, (_, *ratios, ms, _) in cells("amd_epyc_avx2_2_cores", "large_ende").items():
        known = [one.removesuffix(" (1.00 to 1.00)") for one in ratios]
        assert f"| {' | '.join([engine, ms, *known])} |" in page


def test_the_short_table_has_the_same_ratios():
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
    table = page.split("## Against other engines")[1].split("\n|", 1)[1].split("\n\n")[0]
    head, _, row = (
        [one.strip() for one in line.strip("|").split("|")] for line in table.splitlines()
    )
    found = cells("amd_epyc_avx512_2_cores", "large_ende")
    names = {
        "specdec alone": "specdec alone",
        "T5X": "T5X temperature_sample",
        "CTranslate2 int8": "CTranslate2 int8",
        "CTranslate2 float32": "CTranslate2 float32",
        "Hugging Face, `assistant_model`": "Hugging Face assistant_model",
        "Hugging Face, `generate`": "Hugging Face generate",
    }
    assert dict(zip(head, row, strict=True)) == {
        shown: found[engine][2].split()[0] for shown, engine in names.items()
    }


FAMILIES = {
    "LLaMA, 374M, float32": ("llama_374m_float32", "CTranslate2 float32"),
    "LLaMA, 374M, int8": ("llama_374m_int8", "CTranslate2 int8"),
    "Whisper small's sizes, float32": ("whisper_small_float32", "CTranslate2 float32"),
    "Whisper small's sizes, int8": ("whisper_small_int8", "CTranslate2 int8"),
    "Whisper small's sizes, 120 tokens, float32": (
        "whisper_small_120_tokens_float32",
        "CTranslate2 float32",
    ),
    "Whisper small's sizes, 120 tokens, int8": (
        "whisper_small_120_tokens_int8",
        "CTranslate2 int8",
    ),
    "MADLAD's widths, 4 + 4 layers, float32": ("madlad_8_layers_float32", "CTranslate2 float32"),
    "MADLAD's widths, 4 + 4 layers, int8": ("madlad_8_layers_int8", "CTranslate2 int8"),
    "Chronos small's sizes, float32": ("chronos_small", "chronos-forecasting"),
}


def test_the_table_of_families_has_what_the_lines_say():
    page = (ROOT / "docs" / "reference" / "families.md").read_text(encoding="utf-8")
    rows = [
        line for line in page.splitlines() if line.startswith(tuple(f"| {x} |" for x in FAMILIES))
    ]
    assert len(rows) == len(FAMILIES)
    for (name, (lines, peer)), row in zip(FAMILIES.items(), rows, strict=True):
        found = cells("intel_r_xeon_r_processor_avx512_2_cores", lines)
        _, *over, ms, _ = found[peer]
        alone, *_ = (found[f"specdec {way}"][-2] for way in ("alone", "speculative"))
        assert row == f"| {' | '.join([name, peer, alone, ms, *over])} |"


@pytest.mark.parametrize("threads", ["0", "100000"])
def test_threads_without_cores_are_refused(threads, capsys):
    assert compare.main(["--threads", threads]) == 2
    assert f"compare: --threads is {threads}; give a number from 1 to" in capsys.readouterr().err
