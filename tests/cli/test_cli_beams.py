"""Commands with --num_beams: what they write, measure and certify."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from support import GOLDEN, check_lines
from tolerances import SCORES

from specdec import InteractiveModel, checkpoints, cli, tasks
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import HuggingFaceBeams
from specdec.decoding.beam_search import beam_search
from specdec.types import Params

FOLDER = str(GOLDEN / "hf_byt5")
RUN = [f"--target={FOLDER}", f"--draft={FOLDER}", "--text=A cat.", "--text=Two cats run."]
SHORT = ["--max_length=10", "--num_beams=3", "--num_return=2", "--beam_rule=huggingface"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("beams") / "out.jsonl"
    assert cli.main(["decode", *RUN, *SHORT, f"--output_file={path}"]) == 0
    return path


def test_lines_have_the_beams_of_the_library(lines):
    check_lines("beams", lines, lines.with_name("out.jsonl.gin"))
    target = checkpoints.model_from(FOLDER)
    params = Params(checkpoints.load(FOLDER, config=target.config))
    for line in map(json.loads, lines.read_text().splitlines()):
        ids = [byte + 3 for byte in line["input"].encode()] + [1]
        plan = BeamPlan(target, 3, HuggingFaceBeams(), 10)
        found = beam_search(params, jnp.asarray([ids], jnp.int32), plan)
        for place in range(2):
            right = np.asarray(found.tokens[0, place, : found.length[0, place]]).tolist()
            assert line["tokens"][place] == right
        np.testing.assert_allclose(line["scores"], found.scores[0, :2], **SCORES)
        assert line["calls"] <= line["steps"] == int(found.trace.calls[0])


@pytest.mark.ci
def test_the_settings_beside_the_lines_repeat_the_run(lines, tmp_path, capsys):
    again = tmp_path / "again.jsonl"
    assert cli.main(["decode", f"--gin_file={lines}.gin", f"--output_file={again}"]) == 0
    assert again.read_text() == lines.read_text()
    err = capsys.readouterr().err
    assert "3 beams, HuggingFaceBeams(length_penalty=1.0" in err and "steps per call" in err


@pytest.mark.ci
def test_python_searches_for_the_same_beams(lines):
    texts = [text.removeprefix("--text=") for text in RUN[2:]]
    model = InteractiveModel(FOLDER, FOLDER, lengths={"inputs": 32, "targets": 10})
    found = model.beams(texts, 3, num_return=2, rule=HuggingFaceBeams())
    for text, line in zip(found, map(json.loads, lines.read_text().splitlines()), strict=True):
        assert list(map(list, text.tokens)) == line["tokens"]
        assert list(text.predictions) == line["predictions"]


@pytest.fixture
def evaluate(tmp_path):
    """Evaluates the two texts with references; returns the folder."""
    (tmp_path / "texts.tsv").write_text("A cat.\tEine Katze.\nTwo cats run.\tZwei Katzen laufen.\n")
    pair = [f"--target={FOLDER}", f"--draft={FOLDER}", f"--input_file={tmp_path / 'texts.tsv'}"]

    def run(name="out", *more):
        where = f"--output_dir={tmp_path / name}", "--metric=bleu"
        return cli.main(["eval", *pair, *where, *SHORT, *more]), tmp_path / name

    return run


def test_an_evaluation_has_the_lines_of_decode_and_metrics_of_the_best_beam(lines, evaluate):
    code, folder = evaluate()
    assert code == 0
    check_lines("beams", folder / "predictions.jsonl", folder / "run.gin")
    written = [json.loads(x) for x in (folder / "predictions.jsonl").read_text().splitlines()]
    targets = [line.pop("target") for line in written]
    assert written == [json.loads(line) for line in lines.read_text().splitlines()]
    report = json.loads((folder / "metrics.json").read_text())
    best = [line["predictions"][0] for line in written]
    assert report["metrics"] == {"beams": tasks.bleu(targets, best)}
    assert report["search"]["plan"].startswith("3 beams, HuggingFaceBeams(")
    assert report["search"]["steps"] == sum(line["steps"] for line in written)


@pytest.mark.ci
def test_an_evaluation_of_beams_goes_on_where_it_stopped(evaluate):
    _, whole = evaluate("whole", "--compare")
    folder = shutil.copytree(whole, whole.with_name("again"))
    assert json.loads((folder / "metrics.json").read_text())["identical"] == 2
    written = folder / "predictions.jsonl"
    first, _, _ = written.read_text().partition("\n")
    written.write_text(first + "\n")
    (folder / "metrics.json").unlink()
    assert evaluate("again", "--compare")[0] == 0
    for name in ("predictions.jsonl", "metrics.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_a_benchmark_times_plain_and_drafted_beams_and_greedy_speculation(tmp_path, capsys):
    file = tmp_path / "out.jsonl"
    command = ["bench", *RUN, *SHORT, "--repeats=1", f"--output_file={file}"]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "times as fast as plain beams" in out and "2 of 2 texts the same beams, 3 beams" in out
    check_lines("bench", file)
    made = [line for line in map(json.loads, file.read_text().splitlines()) if "mode" in line]
    modes = ["alone", "speculative", "greedy", "greedy", "speculative", "alone"]
    assert [line["mode"] for line in made] == modes
    assert [len(line.get("beams", ())) for line in made] == [3, 3, 0, 0, 3, 3]
    summary = json.loads(file.with_name("out.jsonl.summary.json").read_text())
    assert summary["identical"] == 2 and summary["prediction"]["these_texts"] > 0
    assert summary["run"]["rule"] == repr(HuggingFaceBeams())
    assert cli.main(["report", f"{file}.summary.json"]) == 2
    assert "is of a beam search, which a report does not show" in capsys.readouterr().err
    before = file.read_text()
    assert cli.main(command) == 0 and file.read_text() == before  # nothing is measured again


@pytest.mark.parametrize(
    "given, says",
    [
        ({"num_return": 4}, "NUM_RETURN is set but NUM_BEAMS is 0; give"),
        ({"length_penalty": 1.0}, "LENGTH_PENALTY is set but NUM_BEAMS is 0; give"),
        ({"rule": "huggingface"}, "BEAM_RULE is set but NUM_BEAMS is 0; give"),
        ({"num_beams": 4, "early_stopping": True}, "EARLY_STOPPING is True but BEAM_RULE 't5x'"),
    ],
)
def test_settings_without_a_search_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        cli.Beams(**given)


def test_the_best_text_is_printed_and_compared(capsys):
    assert cli.main(["decode", *RUN, "--max_length=10", "--num_beams=2", "--compare"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "best only" in err and "2 of 2 with the beams of the target alone" in err
