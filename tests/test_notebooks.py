"""Notebooks run from top to bottom: pytest tests/test_notebooks.py -m slow"""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
COLAB = "https://colab.research.google.com/github/OWNER/specdec/blob/main/notebooks"


def cells(notebook: Path, kind: str) -> list[str]:
    made = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in made if cell["cell_type"] == kind]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_stored_without_outputs_and_links_to_itself(notebook):
    stored = json.loads(notebook.read_text(encoding="utf-8"))
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert f"]({COLAB}/{notebook.name})" in cells(notebook, "markdown")[0]
    assert cells(notebook, "code")[0].endswith("\n%pip install --quiet specdec_jax-*.whl")
    for source in cells(notebook, "code")[1:]:
        compile(source, notebook.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # no file of a checkout is at hand
    script = tmp_path / "notebook.py"
    script.write_text("\n".join(cells(notebook, "code")[1:]), encoding="utf-8")
    values = runpy.run_path(str(script))
    assert "target calls" in capsys.readouterr().out
    if notebook.stem == "t5_pair":
        assert values["outputs"][0] == "Die Katze schläft."
        assert "Bäcker" in values["explained"]._repr_html_()
    else:
        assert values["features"].shape == (1, 80, 3000) and values["length"] == 32


def test_there_are_two():
    assert [notebook.stem for notebook in NOTEBOOKS] == ["t5_pair", "whisper"]
