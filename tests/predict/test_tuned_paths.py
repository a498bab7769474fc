"""The number of paths that suits a device: pytest tests/predict/test_tuned_paths.py"""

import json
from typing import Any

import pytest

from specdec import cli
from specdec.measure.parts import Calls
from specdec.predict import tuning
from specdec.predict.costs import Costs

pytestmark = pytest.mark.slow

# A call as wide as a draft, on a device that is flat in width, and on one that is not.
WIDTHS = range(1, 40)
DEVICES = {"flat": 0.001, "narrow": 0.3}
VARIANTS = ["", "drafters/multi_path.gin;NUM_PATHS=4"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_flat_device_gets_several_paths_and_another_one_path(
    device, tmp_path, cache, monkeypatch, capsys
):
    monkeypatch.setattr(tuning, "CONFIDENCES", ())
    monkeypatch.setattr(tuning, "ENTROPIES", ())
    calls: dict[Any, float] = {
        Calls("target", width): 1 + DEVICES[device] * (width - 1) for width in WIDTHS
    }
    calls |= {Calls("draft", width): 0.01 for width in (1, 2, 4)}
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(Costs(calls, 0.0, 0.0, 1.0, "a test").record()), encoding="utf-8")
    flags = ["--gin_file=demo.gin", "--limit=20", "--longest=2"]
    flags += [f"--costs={file}", f"--compilation_cache_dir={cache}", f"--output_dir={tmp_path}/out"]
    variants = [f"--variant={name}" for name in VARIANTS]
    assert cli.main(["tune", *flags, *variants]) == 0, capsys.readouterr().err
    text = (tmp_path / "out" / "tuned.gin").read_text()
    assert ("NUM_PATHS = 4" in text) == (device == "flat")
    lines = [json.loads(x) for x in (tmp_path / "out" / "tried.jsonl").read_text().splitlines()]
    kept = {(one["variant"], one["setting"]): one["tokens_per_call"] for one in lines}
    assert kept[VARIANTS[1], 2] > kept["", 2]
    assert cli.main(["tune", *flags, "--drafter=multi_path"]) == 2
    assert "put --variant=drafters/autoregressive.gin first" in capsys.readouterr().err
