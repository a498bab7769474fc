"""The settings of a checkpoint that a run takes: pytest tests/checkpoints/test_settings_taken.py

The ids are those of transformers 5.24's `generate` with the same settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from support import GOLDEN

from specdec import Plan, autoregressive_decode, checkpoints, cli, row_keys
from specdec.checkpoints import CheckpointError, generation
from specdec.checkpoints.generation import changes, start_of
from specdec.checkpoints.generation import read as settings_of
from specdec.checkpoints.generation_settings import obeyed, searched
from specdec.checkpoints.transcription import Transcribed
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import HuggingFaceBeams, T5XBeams
from specdec.decoding.beam_search import beam_search
from specdec.engine import Engine, Settings
from specdec.engine.beam_engine import beam_plan, searching
from specdec.sampling import ForcedEOS, Greedy, NoRepeatNGram, RepetitionPenalty
from specdec.types import Params

TEXT = json.loads((GOLDEN / "generation" / "cases_5.json").read_text())["cases"]["plain"]
ENDS = [1, 23, 44]  # of the T5, so that texts end early
SEARCHED = [
    ({}, [[11, 54, 54, 49, 35, 11, 19, 11, 23], [23], [27, 24, 9, 18, 50, 18, 50, 1]]),
    ({"length_penalty": 0.0}, [[23], [23], [23]]),
    (
        {"length_penalty": 2.0},
        [
            [11, 54, 54, 49, 35, 11, 19, 11, 23],
            [39, 20, 23],
            [27, 24, 9, 18, 50, 18, 50, 18, 50, 1],
        ],
    ),
    ({"length_penalty": -2.0}, [[23], [23], [23]]),
    ({"early_stopping": True}, [[23], [23], [23]]),
]
OPENING, TO_41 = [47, 50, 51], [38, 38, 41]
ENGLISH = {"language": "english", "task": "transcribe"}
EARLY = {"eos_token_id": [45, 41, 56, 27]}  # ends of the Whisper's texts


def with_settings(folder: Path, name: str, **settings) -> Path:
    """Writes a golden checkpoint of a T5 or a Whisper with further generation settings."""
    if name == "whisper":
        made = Path(shutil.copytree(GOLDEN / "hf_whisper", folder / name))
    else:
        made = folder / name
        made.mkdir()
        for file, record in TEXT["files"].items():
            (made / file).write_text(json.dumps(record))
        shutil.copy(GOLDEN / "generation" / "model.safetensors", made)
    file = made / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return made


def plan_of(directory: Path, chosen=None, **options) -> Plan:
    """The plan of a checkpoint that obeys its settings."""
    text = checkpoints.text_model_from(directory, needed=False)
    plan = Plan(checkpoints.model_from(directory), None, None, None, Greedy(), 20, text.stop_ids)
    if chosen is None and directory.name == "whisper":
        chosen = Transcribed()
    return obeyed(plan, text, chosen, **options)


@pytest.mark.parametrize(
    "settings, own",
    [
        ({"repetition_penalty": 3.0}, RepetitionPenalty(3.0)),
        ({"no_repeat_ngram_size": 2}, NoRepeatNGram(2)),
        ({"forced_eos_token_id": 45}, ForcedEOS(20)),
    ],
)
def test_a_whisper_obeys_the_settings_of_texts(settings, own, tmp_path):
    (tmp_path / "plain").mkdir()
    plain = plan_of(with_settings(tmp_path / "plain", "whisper", **ENGLISH))
    plan = plan_of(with_settings(tmp_path, "whisper", **ENGLISH, **settings))
    assert plan.sampling.processors == (own, *plain.sampling.processors)


@pytest.mark.ci  # each compiles a program
@pytest.mark.parametrize(
    "settings, right",
    [
        ({"repetition_penalty": 3.0}, [38, 45]),
        (
            {"no_repeat_ngram_size": 2},
            [*TO_41, 38, 16, 16, 32, 16, 27, 27, 23, 38, 56, 38, 23, 23, 27],
        ),
        (
            {"forced_eos_token_id": 45},
            [*TO_41, 38, 38, 38, 27, 27, 27, 27, 27, 23, 56, 23, 16, 38, 45],
        ),
    ],
)
def test_transcripts_are_those_of_transformers(settings, right, tmp_path):
    directory = with_settings(tmp_path, "whisper", **ENGLISH, **settings)
    plan = plan_of(directory)
    params = checkpoints.load(directory, config=plan.target.config)
    features = np.load(GOLDEN / "hf_whisper" / "golden.npz")["features"][:1]
    given = {"target": plan.target, "sampling": plan.sampling, "max_length": 20}
    output = autoregressive_decode(params, row_keys(0, jnp.arange(1)), features, **given)
    assert output.tokens[0, : int(output.length[0])].tolist() == OPENING + right


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"num_beams": 3}, "has num_beams 3, and this run does no beam search; search with"),
        ({"do_sample": True, "temperature": 0.7}, "has do_sample True, .* draw with --temperature"),
        ({"frobnicate": 3}, "has frobnicate 3, which is an unknown setting; take it "),
        ({"min_new_tokens": 3}, "has min_new_tokens 3, which counts from the end of a decoder pre"),
        ({"return_timestamps": "word"}, "has return_timestamps 'word', which is not supported"),
        ({"language": "klingon"}, "generation_config.json has language 'klingon'; give one that"),
        ({"language": 5}, "generation_config.json has language 5; give one that .* has: de, en"),
        ({"task": "sing"}, "generation_config.json has task 'sing'; .* has: transcribe, translate"),
        ({"forced_decoder_ids": [[1, 47], [4, 9]]}, r"forced_decoder_ids \[\[1, 47\], \[4, 9\]\];"),
        ({"forced_decoder_ids": [1, 47]}, r"forced_decoder_ids \[1, 47\]; supported are pairs"),
        ({"forced_decoder_ids": [[3, 50]]}, r"forced_decoder_ids \[\[3, 50\]\]; supported are"),
    ],
)
def test_settings_that_a_whisper_refuses(settings, says, tmp_path):
    directory = with_settings(tmp_path, "whisper", **settings)
    with pytest.raises(CheckpointError, match=says) as raised:
        plan_of(directory)
    assert "\n" not in str(raised.value) and str(directory) in str(raised.value)


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_every_setting_that_nothing_takes_is_refused(name, tmp_path):
    directory = with_settings(tmp_path, name)
    text = checkpoints.text_model_from(directory, needed=False)
    plan = plan_of(directory)
    chosen = Transcribed() if name == "whisper" else None
    for key in [*generation.MISSING, "any_other"]:
        if key == "forced_decoder_ids" and chosen:
            continue  # see above
        settings = dict(text.settings) | {key: generation.Setting("x", "generation_config.json")}
        with pytest.raises(CheckpointError, match=f"has {key} 'x', "):
            obeyed(plan, dataclasses.replace(text, settings=settings), chosen)


@pytest.mark.parametrize("language", ["de", "german", "German", "DE", "<|de|>"])
def test_languages_are_read_as_by_transformers(language, tmp_path):
    directory = with_settings(tmp_path, "whisper", language=language)
    by_file = plan_of(directory).sampling.processors[-1]
    by_run = plan_of(GOLDEN / "hf_whisper", Transcribed(language)).sampling.processors[-1]
    assert by_file.choices == by_run.choices == ((48,), (50,), (51,))
    known = {"<|nl|>": 47, "<|ht|>": 48}
    record = directory / "generation_config.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"lang_to_id": known}))
    for other, id in (("Flemish", 47), ("haitian creole", 48)):
        found = plan_of(directory, Transcribed(other)).sampling.processors[-1]
        assert found.choices[0] == (id,)


def test_timestamps_are_those_of_the_settings_unless_the_run_says(tmp_path):
    directory = with_settings(tmp_path, "whisper", return_timestamps=True, language="en")
    choices = {}
    for stamped in (None, True, False):
        made = plan_of(directory, Transcribed(timestamps=stamped)).sampling.processors
        choices[stamped] = [type(one).__name__ for one in made], made[-1].choices
    assert choices[None] == choices[True] != choices[False]
    assert choices[True][1] == ((47,), (50,)) and "Timestamps" in choices[True][0]
    text = checkpoints.text_model_from(directory, needed=False)
    assert Transcribed().resolved(text.settings).timestamps is True
    assert Transcribed(timestamps=False).resolved(text.settings).timestamps is False


def test_older_whispers_have_the_opening_in_config_json(tmp_path):
    directory = with_settings(tmp_path, "whisper")
    record = directory / "config.json"
    forced = {"forced_decoder_ids": [[1, 48], [2, 49], [3, 51]]}
    record.write_text(json.dumps(json.loads(record.read_text()) | forced))
    assert plan_of(directory).sampling.processors[-1].choices == ((48,), (49,), (51,))


def test_a_search_takes_its_rule_from_the_settings(tmp_path):
    settings = {"length_penalty": 2.0, "early_stopping": "never"}
    text = checkpoints.text_model_from(with_settings(tmp_path, "t5", **settings))
    assert searched(HuggingFaceBeams(), text) == HuggingFaceBeams(2.0, "never")
    assert searched(HuggingFaceBeams(0.5, True), text) == HuggingFaceBeams(0.5, True)
    with pytest.raises(CheckpointError, match="has length_penalty 2.0, which the search of T5XB"):
        searched(T5XBeams(), text)
    for name, value in (("length_penalty", "2"), ("early_stopping", "soon")):
        wrong = {name: generation.Setting(value, "generation_config.json")}
        with pytest.raises(CheckpointError, match=f"HuggingFaceBeams.{name} is '{value}'; give"):
            searched(HuggingFaceBeams(), dataclasses.replace(text, settings=wrong))


@pytest.mark.parametrize("settings, rule", [("obey", (-2.0, True)), ("ignore", (1.0, False))])
def test_every_search_of_an_engine_follows_the_settings(settings, rule, tmp_path):
    stated = {"length_penalty": -2.0, "early_stopping": True, "num_beams": 4}
    directory = with_settings(tmp_path, "t5", **stated)
    plan = Plan(checkpoints.model_from(directory), None, None, None, Greedy(), 10)
    chosen = Settings(generation_settings=settings)
    engine = Engine.open(plan, {"target": directory}, settings=chosen, num_beams=4)
    search = searching(engine, beam_plan(engine.plan, 4, HuggingFaceBeams()))
    assert search.plan.rule == search.alone().plan.rule == HuggingFaceBeams(*rule)


@pytest.mark.ci  # each compiles a search
@pytest.mark.parametrize("settings, right", SEARCHED, ids=str)
def test_beams_of_a_checkpoint_are_those_of_transformers(settings, right, tmp_path):
    directory = with_settings(tmp_path, "t5", num_beams=4, eos_token_id=ENDS, **settings)
    text = checkpoints.text_model_from(directory)
    target = checkpoints.model_from(directory)
    rule = searched(HuggingFaceBeams(), text)
    params = Params(checkpoints.load(directory, config=target.config))
    inputs = np.zeros([3, 14], np.int32)
    for row, one in enumerate(TEXT["texts"]):
        inputs[row, : len(one["inputs"])] = one["inputs"]
    plan = BeamPlan(target, 4, rule, 10, stop_ids=text.stop_ids, best_only=True)
    found = beam_search(params, jnp.asarray(inputs), plan)
    assert [found.texts(row)[0] for row in range(3)] == right


@pytest.mark.ci  # compiles a search
def test_what_opens_a_transcript_counts_as_little_as_in_transformers(tmp_path):
    directory = with_settings(tmp_path, "whisper", length_penalty=2.0, **ENGLISH, **EARLY)
    text = checkpoints.text_model_from(directory, needed=False)
    plan = plan_of(directory, num_beams=3)
    made = plan.sampling.processors
    params = Params(checkpoints.load(directory, config=plan.target.config))
    features = jnp.asarray(np.load(GOLDEN / "hf_whisper" / "golden.npz")["features"])
    texts = {}
    for opened in (3, 0):
        rule = searched(HuggingFaceBeams(), text, opened)
        search = BeamPlan(plan.target, 3, rule, 20, None, made, stop_ids=text.stop_ids)
        found = beam_search(params, features, search)
        texts[opened] = [found.texts(row)[0][3:] for row in range(2)]
    assert texts == {3: [[38, 38, 41], [38, 45]], 0: [[31, 45], [38, 45]]}


def listed(capsys, directory: Path, *flags: str) -> dict[str, str]:
    """Returns the lines of a dry run about the target's texts, by subject."""
    assert cli.main(["decode", f"--target={directory}", "--text=a", "--dry_run", *flags]) == 0
    lines = [x[4:].split(": ", 1) for x in capsys.readouterr().out.splitlines() if x[:4] == "#   "]
    return {line[0]: line[1] for line in lines if len(line) == 2}


def test_a_dry_run_lists_what_is_in_effect(tmp_path, capsys):
    settings = {"length_penalty": 2.0, "temperature": 0.7, "no_repeat_ngram_size": 2}
    directory = with_settings(tmp_path, "t5", **settings)
    file = "(generation_config.json)"
    greedy = listed(capsys, directory)
    assert greedy["generation"].endswith(f", no_repeat_ngram_size 2 {file}")
    assert greedy["without effect"] == f"length_penalty 2.0 {file}, temperature 0.7 {file}"
    search = "--num_beams=2", "--beam_rule=huggingface"
    beams = listed(capsys, directory, *search)
    assert f"length_penalty 2.0 {file}" in beams["generation"]
    assert beams["search"] == "2 beams, HuggingFaceBeams(length_penalty=2.0, early_stopping=False)"
    own = listed(capsys, directory, *search, "--length_penalty=0.5", "--no_repeat_ngram_size=3")
    assert own["without effect"] == (
        f"length_penalty 2.0 {file}, temperature 0.7 {file}, no_repeat_ngram_size 2 {file}"
    )
    ignored = listed(capsys, directory, "--generation_settings=ignore")
    assert "no_repeat_ngram_size" not in ignored["generation"]


# The files.


def test_null_in_the_settings_of_our_own_checkpoint_is_no_setting(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_k": null, "bos_token_id": 5}')
    assert list(settings_of(tmp_path)) == ["bos_token_id"]
    assert start_of(settings_of(tmp_path)) == 5


@pytest.mark.parametrize(
    "name, value, is_one",
    [
        *(("use_cache", False, False), ("top_k", 0, False), ("top_k", 5, True)),
        *((name, 0, False) for name in ("num_beams", "num_beam_groups", "min_length")),
        *(("min_length", 1, False), ("unknown", 1, True)),
    ],
)
def test_settings_that_change_something(name, value, is_one):
    assert changes(name, value) == is_one


# What transformers takes where a file says nothing.
DEFAULTS = {
    **dict.fromkeys(("do_sample", "early_stopping", "return_timestamps", "token_healing"), False),
    **dict.fromkeys(("temperature", "top_p", "typical_p", "repetition_penalty"), 1.0),
    **dict.fromkeys(("length_penalty", "encoder_repetition_penalty", "guidance_scale"), 1.0),
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
    **dict.fromkeys(("top_k", "min_p", "epsilon_cutoff", "eta_cutoff", "diversity_penalty"), 0),
    **dict.fromkeys(("penalty_alpha", "no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    "encoder_no_repeat_ngram_size": 0,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_changes_nothing(name):
    assert not changes(name, DEFAULTS[name]) and changes(name, 7)


@pytest.mark.parametrize(
    "settings",
    [{"decoder_start_token_id": True}, {"eos_token_id": []}, {"pad_token_id": [0]}],
)
def test_ids_that_are_none(tmp_path, settings):
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=f"has {list(settings)[0]} .*; give a token id"):
        settings_of(tmp_path)


def test_a_default_in_one_file_contradicts_nothing(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"_from_model_config": true}')
    for size, is_refused in ((0, False), (2, True)):
        record = {"model_type": "t5", "no_repeat_ngram_size": size}
        (tmp_path / "config.json").write_text(json.dumps(record))
        refused = pytest.raises(CheckpointError, match="contradicts itself: no_repeat_ngram_size")
        with refused if is_refused else contextlib.nullcontext():
            settings_of(tmp_path)
