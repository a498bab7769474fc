"""Sounds of any kind and length: pytest tests/cli/test_long_sounds.py

The model, the sounds and where the golden ids come from: tests/long_sounds.py.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import long_sounds
import numpy as np
import pytest

from specdec import checkpoints, cli
from specdec.integrations.interactive import InteractiveModel

GOLDEN = json.loads(
    (Path(__file__).resolve().parents[1] / "golden" / "long_sounds.json").read_text()
)
LANGUAGE = {
    "english": ["--gin.LANGUAGE='en'"],
    "translated": ["--gin.LANGUAGE='de'", "--gin.SPEECH_TASK='translate'"],
    "found": [],
    "found_by_older_settings": ["--target=older"],
}
LENGTHS = "--gin.TASK_FEATURE_LENGTHS={'inputs': 1, 'targets': 39}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Has the model, twice with different settings, and the sounds."""
    made = tmp_path_factory.mktemp("long")
    forced = [[1, None], [2, long_sounds.TRANSCRIBE]]
    for name, settings in {"model": {}, "older": {"forced_decoder_ids": forced}}.items():
        long_sounds.make_tokenizer(long_sounds.make_model(made / name, **settings))
    for seconds in long_sounds.SECONDS:
        long_sounds.write_sound(made / f"{seconds}.wav", long_sounds.sound(seconds))
    return made


@pytest.fixture
def decode(folder, cache, monkeypatch, capsys, tmp_path):
    """Decodes in the folder; returns the code, the lines of JSON if it has any, and stderr."""
    monkeypatch.chdir(folder)

    def run(*flags):
        own = ["--target=model", "--gin_file=transcribe.gin", LENGTHS, f"--output_file={out}"]
        code = cli.main(["decode", *own, f"--compilation_cache_dir={cache}", *flags])
        lines = out.read_text().splitlines() if out.exists() else []
        return code, [json.loads(line) for line in lines], capsys.readouterr().err

    out = tmp_path / "out"

    return run


def check(line, golden) -> None:
    assert line["tokens"] == golden["tokens"]
    assert [[one["start"], one["end"]] for one in line["segments"]] == golden["segments"]
    assert len(line["log_probs"]) == len(line["tokens"])


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow if x != "translated" else ()) for x in LANGUAGE],
)
def test_long_sounds_have_the_ids_and_times_of_transformers(name, decode):
    """Three at a time, so that a row waits while another has windows left."""
    texts = [f"--text={seconds}.wav" for seconds in long_sounds.SECONDS]
    code, lines, err = decode(
        *LANGUAGE[name], *texts, "--gin.TIMESTAMPS=True", "--gin.BATCH_SIZE=3"
    )
    assert code == 0, err
    for seconds, line in zip(long_sounds.SECONDS, lines, strict=True):
        check(line, GOLDEN[f"{name} {seconds}"])
        assert line["prediction"].startswith("<|")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LANGUAGE))
def test_without_timestamps_only_long_sounds_have_them_in_their_ids(name, decode):
    code, lines, err = decode(*LANGUAGE[name], "--text=2.wav", "--text=31.wav")
    assert code == 0, err
    short, golden = lines[0], GOLDEN[f"{name} without timestamps"]["tokens"]
    assert short["tokens"][-len(golden) :] == golden and "segments" not in short
    assert len(short["tokens"]) == 39
    check(lines[1], GOLDEN[f"{name} 31"])
    words = "".join(one["text"] for one in lines[1]["segments"])
    assert lines[1]["prediction"] == words and "<|" not in words


@pytest.mark.slow
def test_a_draft_changes_no_transcript(decode, folder):
    trim = ["--shared_encoder", "--decoder_layers=0", f"--output={folder / 'draft'}"]
    assert cli.main(["trim", f"--input={folder / 'model'}", *trim]) == 0
    texts = [f"--text={seconds}.wav" for seconds in (2, 65)]
    code, lines, err = decode(*texts, "--draft=draft", "--gamma=2", "--compare")
    assert code == 0, err
    golden = GOLDEN["found without timestamps"]["tokens"]
    assert lines[0]["tokens"][-len(golden) :] == golden
    check(lines[1], GOLDEN["found 65"])
    assert "all 2 outputs identical to the target's" in err and max(lines[1]["accepted"]) > 0


@pytest.mark.ci
def test_sounds_of_standard_input_may_be_long(decode, folder, monkeypatch):
    (folder / "names").write_text("31.wav\n2.wav\n")
    with (folder / "names").open() as names:
        monkeypatch.setattr("sys.stdin", names)
        code, lines, err = decode(*LANGUAGE["english"])
    assert code == 0, err
    check(lines[0], GOLDEN["english 31"])
    golden = GOLDEN["english without timestamps"]["tokens"]
    assert lines[1]["tokens"][-len(golden) :] == golden


@pytest.fixture
def piped(folder, monkeypatch, capsys):
    """Decodes names of standard input; returns the code and the lines of stdout and of stderr."""
    monkeypatch.chdir(folder)

    def run(names, *flags):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{name}\n" for name in names)))
        given = ["--target=model", "--gin_file=transcribe.gin", "--gin.LANGUAGE='en'", LENGTHS]
        capsys.readouterr()
        code = cli.main(["decode", *given, "--compilation_cache_dir=", *flags])
        return code, *(text.splitlines() for text in capsys.readouterr())

    return run


@pytest.mark.ci
def test_what_is_for_one_window_reads_such_sounds_of_standard_input(piped):
    assert piped(["2.wav"], "--num_beams=2")[0] == 0
    code, out, err = piped(["31.wav"], "--num_beams=2")
    assert code == 2 and not out and "reads 30 in one window" in err[-1]


@pytest.mark.ci
def test_python_transcribes_what_the_command_does(folder):
    model = InteractiveModel(
        folder / "model",
        generation_settings=checkpoints.Transcribed("en"),
        lengths={"inputs": 1, "targets": 39},
    )
    (found,) = model.transcribe([str(folder / "31.wav")])
    assert list(found.tokens) == GOLDEN["english 31"]["tokens"]
    assert model.stats.texts == 1
    (short,) = model.predict([f"{folder}/2.wav"])
    assert model.transcribe([f"{folder}/2.wav"])[0].prediction == short


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3"])
def test_files_of_other_kinds_are_read_and_resampled(kind, decode, folder):
    soundfile = pytest.importorskip("soundfile")
    samples = long_sounds.sound(65).astype(np.float32) / 2**15
    file = folder / f"two_channels.{kind}"
    soundfile.write(file, np.stack([samples, samples], axis=1), 22_050)
    code, lines, err = decode("--gin.TIMESTAMPS=True", *LANGUAGE["english"], f"--text={file.name}")
    assert code == 0, err
    if kind in ("wav", "flac"):  # the others keep less than all
        check(lines[0], GOLDEN["resampled"])
    else:
        assert lines[0]["segments"][-1]["end"] > 40


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_a_sound_becomes_subtitles(kind, decode, folder, tmp_path):
    file = tmp_path / f"talk.{kind}"
    code, (line,), err = decode(*LANGUAGE["english"], "--text=31.wav", f"--subtitles={file}")
    assert code == 0, err
    check(line, GOLDEN["english 31"])
    shown = [line for line in file.read_text().splitlines() if "-->" in line]
    assert shown[0].replace(",", ".") == "00:00:00.160 --> 00:00:00.400"
    assert len(shown) == len(GOLDEN["english 31"]["segments"])
    again, _, err = decode("--output_file=b", "--text=31.wav", f"--subtitles={file}")
    assert again == 2 and f"--subtitles: {file} exists; delete it, or give another file" in err


SUBTITLES = [
    (["--subtitles=a.txt", "--text=2.wav"], "--subtitles is a.txt; give FILE.srt or FILE.vtt"),
    (["--subtitles=no/a.srt", "--text=2.wav"], "no/a.srt cannot be written; give another file"),
    (
        ["--subtitles=a.SRT", "--output_file=a.SRT", "--text=2.wav"],
        "--subtitles and --output_file are both a.SRT; give two files",
    ),
    (["--subtitles=a.srt", "--text=2.wav", "--text=31.wav"], "of one sound; give one --text"),
    (["--quantiles=0.1,2", "--text=2.wav"], "--quantiles is 0.1,2; give levels between 0 and 1"),
    (["--quantiles=0.1", "--text=2.wav"], "--quantiles is for samples of series"),
]


@pytest.mark.parametrize(
    "flags, says",
    [
        *SUBTITLES,
        *((["--dry_run", *flags], says) for flags, says in SUBTITLES),
        (["--dry_run", "--explain", "--text=2.wav"], "--explain has no --output_file"),
        (
            ["--explain", "--output_file=o", "--text=31.wav"],
            "--explain is for sounds of one window",
        ),
        (["--refill", "--batch_size=2", "--text=31.wav"], "REFILL is for sounds of one window"),
        (["--num_beams=2", "--text=31.wav"], "NUM_BEAMS is for sounds of one window"),
        (["--decoder_prefix=a", "--text=31.wav"], "a decoder prefix is for sounds of one window"),
        (["--generation_settings=ignore", "--text=31.wav"], "timestamps need a checkpoint's"),
    ],
)
def test_what_is_not_for_long_sounds_is_one_line(flags, says, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    given = ["--target=model", "--gin_file=transcribe.gin", "--gin.LANGUAGE='en'", LENGTHS]
    if "--draft" not in flags and "--explain" in flags:
        given += ["--drafter=prompt_lookup"]
    code = cli.main(["decode", *given, *flags])
    (line,) = (x for x in capsys.readouterr().err.splitlines() if x.startswith("specdec: "))
    assert code == 2 and says in line


def test_subtitles_of_texts_are_refused(capsys, tmp_path):
    given = ["--target=model", "--text=a", f"--subtitles={tmp_path / 'a.srt'}"]
    assert cli.main(["decode", *given]) == 2
    assert "is for sound; give --gin_file=transcribe.gin as well" in capsys.readouterr().err


def test_a_cut_file_is_named_and_read(folder, decode, monkeypatch):
    whole = (folder / "2.wav").read_bytes()
    (folder / "cut.wav").write_bytes(whole[:-1001])
    code, lines, err = decode(*LANGUAGE["english"], "--text=cut.wav")
    (line,) = (x for x in err.splitlines() if "cut.wav" in x)
    assert code == 0 and len(lines) == 1
    assert line == (
        "specdec: cut.wav ends 1001 bytes before its header says; what is there is read, 1.961 s"
    )


SHARED = Path(__file__).resolve().parents[3] / "shared" / "cases" / "sound"


@pytest.mark.ci
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/cases/sound")
def test_the_cases_of_sound_that_failed(decode, folder):
    names = ("44100.wav", "24bit.wav", "float.wav", "tone.flac", "tone.mp3", "tone.ogg", "cut.wav")
    for name in names:
        shutil.copy(SHARED / name, folder / name)
    code, lines, err = decode(*(f"--text={name}" for name in names), *LANGUAGE["english"])
    assert code == 0, err
    assert len(lines) == 7 and err.count("before its header says") == 1
