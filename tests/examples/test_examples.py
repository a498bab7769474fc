"""What examples/ has, through the command line and gin files alone: pytest tests/examples"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jax
import pytest
from tolerances import FLOAT64

from specdec import certificate, checkpoints, cli
from specdec.drafters import Autoregressive
from specdec.models import partitioning
from specdec.models.t5 import T5Config, T5Target
from specdec.plan import Plan
from specdec.predict.compilation import compile_for
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.testing import check_drafter, check_verifier
from specdec.verifiers import GreedyMatch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LINES = ["one two\teins", "two two words\tzwei Wörter", "three three\tdrei", "a b a b\tein"]
RUN = """
from __gin__ import dynamic_registration
from specdec import tasks
{first}
include 'decode.gin'
include 'drafters/autoregressive.gin'
include 'models/from_checkpoint.gin'
include 'tasks/local.gin'

CHECKPOINT_PATH = '{folder}/target'
DRAFT_CHECKPOINT_PATH = '{folder}/draft'
VOCABULARY = @tasks.Bytes()
TASK_NAME = '{name}'
TASK_FILES = {{'test': '{folder}/test.tsv'}}
TASK_FEATURE_LENGTHS = {{'inputs': 16, 'targets': 8}}
GAMMA = 2
"""


@pytest.fixture(scope="module", autouse=True)
def modules_of_the_examples():
    """What gin does for a file among them: their folder is where modules are looked for."""
    sys.path.append(str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


def written(folder: Path, target, draft, first: str = "") -> str:
    """A run of two models with random parameters, as a gin file."""
    (folder / "test.tsv").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    run = RUN.format(folder=folder, name=folder.name, first=first)
    (folder / "run.gin").write_text(run)
    for seed, (name, model) in enumerate({"target": target, "draft": draft}.items()):
        params = model.init(jax.random.key(seed))
        checkpoints.save(folder / name, params, config=model.config)
    return str(folder / "run.gin")


def t5(width: int) -> T5Target:
    sizes = dict(num_heads=2, head_dim=4, num_encoder_layers=1, num_decoder_layers=1)
    return T5Target(T5Config(vocab_size=261, emb_dim=width, mlp_dim=width, **sizes))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    return written(tmp_path_factory.mktemp("t5"), t5(12), t5(8))


@pytest.fixture(scope="module")
def rotary_run(tmp_path_factory) -> str:
    """Two models of the example's family, whose checkpoints no line of the package knows of."""
    folder = tmp_path_factory.mktemp("rotary")
    target, draft = rotary(16), rotary(8)
    return written(folder, target, draft, first="import rotary")


def rotary(width: int):
    from rotary import Rotary, RotaryConfig

    return Rotary(
        RotaryConfig(264, emb_dim=width, num_heads=2, head_dim=4, mlp_dim=width, num_layers=2)
    )


@pytest.fixture
def specdec(capsys, tmp_path):
    """Runs a command with gin files; what it prints."""

    def run(command: str, *files: str, more: tuple[str, ...] = (), code: int = 0) -> str:
        flags = [f"--gin_file={file}" for file in files]
        ended = cli.main([command, *flags, "--compilation_cache_dir=", *more])
        out, err = capsys.readouterr()
        assert ended == code, out + err
        return out + err

    return run


def identical(printed: str) -> bool:
    figures = re.search(r"identical outputs +(\d+) of (\d+)", printed)  # of bench
    return len(set(figures.groups())) == 1 if figures else "outputs identical to" in printed


@pytest.mark.ci
def test_a_drafter_of_ones_own_decodes(specdec, run):
    printed = specdec("decode", run, f"{EXAMPLES}/copying.gin", more=("--compare",))
    assert "Copying, Fixed(gamma=2), Block(), Greedy()" in printed
    assert identical(printed)


@pytest.mark.ci
def test_a_drafter_of_ones_own_is_measured_and_forecast(specdec, run, tmp_path):
    """It runs no model: what is predicted is the target's calls alone."""
    file = tmp_path / "out.jsonl"
    printed = specdec(
        "bench",
        run,
        f"{EXAMPLES}/copying.gin",
        more=("--repeats=1", "--limit=2", f"--output_file={file}"),
    )
    assert identical(printed) and "predicted speed-up" in printed
    summary = json.loads(Path(f"{file}.summary.json").read_text())
    assert summary["prediction"]["draft"] == 0 and summary["prediction"]["verify"] > 0
    assert summary["exact"] is True


@pytest.mark.slow
def test_a_drafter_of_ones_own_keeps_the_rules_that_all_keep():
    from copying import Copying

    check_drafter(Copying(), gammas=(2,))


@pytest.mark.ci
def test_a_verifier_of_ones_own_decodes(specdec, run):
    printed = specdec("decode", run, "sampling/temperature.gin", f"{EXAMPLES}/own_draw.gin")
    assert "OwnDraw()" in printed and "NOT EXACT" not in printed and "4 texts" in printed


@pytest.mark.slow
def test_a_verifier_of_ones_own_is_certified(specdec, run, tmp_path):
    certificate = tmp_path / "certificate.json"
    printed = specdec(
        "verify",
        run,
        "sampling/temperature.gin",
        f"{EXAMPLES}/own_draw.gin",
        more=(f"--output_file={certificate}",),
        code=1,  # four texts
    )
    assert "NOT ENOUGH TEXTS: all" in printed and "OwnDraw() is off by" in printed


@pytest.mark.slow
def test_a_verifier_of_ones_own_has_the_targets_law():
    from own_draw import OwnDraw

    error = check_verifier(OwnDraw(), samplings=(Sampling(),), gammas=(1, 2))
    assert error == pytest.approx(0, abs=FLOAT64)


@pytest.mark.slow
def test_a_verifier_that_does_not_say_it_is_exact_is_not(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "silent.py").write_text(
        "import own_draw\nclass Silent(own_draw.OwnDraw):\n    exact = False\n"
    )
    (tmp_path / "silent.gin").write_text(
        "from __gin__ import dynamic_registration\nimport silent\nVERIFIER = @silent.Silent()\n"
    )
    files = [f"--gin_file={file}" for file in (run, tmp_path / "silent.gin")]
    monkeypatch.setattr(certificate, "CHECKS", ())
    record = f"--output_file={tmp_path / 'certificate.json'}"
    assert cli.main(["verify", *files, record, "--compilation_cache_dir="]) == 1
    assert "NOT EXACT: " in capsys.readouterr().out
    assert cli.main(["decode", *files, "--compilation_cache_dir="]) == 2
    assert "does not keep the target's distribution" in capsys.readouterr().err
    files.append("--gin.LOSSY=True")
    assert cli.main(["decode", *files, "--compilation_cache_dir="]) == 0
    assert "NOT EXACT" in capsys.readouterr().err


@pytest.mark.ci
@pytest.mark.parametrize(
    "sampled",
    [
        ("sampling/temperature.gin", "verifiers/coupled.gin"),
        pytest.param((), marks=pytest.mark.slow),
    ],
)
def test_a_family_of_ones_own_decodes(specdec, rotary_run, sampled):
    printed = specdec("decode", rotary_run, *sampled, more=("--compare", "--gin.BATCH_SIZE=3"))
    assert identical(printed) and "4 texts" in printed


@pytest.mark.slow
def test_a_family_of_ones_own_is_certified(specdec, rotary_run, tmp_path):
    output = f"--output_file={tmp_path / 'certificate.json'}"
    printed = specdec("verify", rotary_run, more=(output, "--gin.BATCH_SIZE=2"), code=1)
    assert "NOT ENOUGH TEXTS: all" in printed


@pytest.mark.slow
def test_a_family_of_ones_own_is_measured(specdec, rotary_run):
    printed = specdec("bench", rotary_run, more=("--repeats=1", "--limit=2"))
    assert identical(printed) and "predicted speed-up" in printed


def test_a_family_of_ones_own_is_scored_and_converted(specdec, rotary_run, tmp_path, capsys):
    assert "perplexity" in specdec("score", rotary_run)
    target = str(Path(rotary_run).parent / "target")
    assert cli.main(["convert", target, str(tmp_path / "copy"), "--format=orbax"]) == 0
    assert checkpoints.model_from(tmp_path / "copy") == rotary(16)


@pytest.mark.slow
def test_a_family_of_ones_own_is_compiled_for_a_mesh():
    """The programs of `specdec compile`; the devices are this machine's."""
    rules = partitioning.standard_logical_axis_rules()
    models = [type(model)(model.config, rules) for model in (rotary(16), rotary(8))]
    drafter = Autoregressive(models[1], Greedy())
    plan = Plan(models[0], drafter, GreedyMatch(), Fixed(2), Greedy(), 8)
    compilation = compile_for(plan, (4, 6), partitioning.make_mesh(2))
    assert {"prefill", "target 1", "target 3", "draft 1", "draft 2"} <= set(compilation.parts)
    assert compilation.cache_bytes > 0 and compilation.calls["target"].layers == 2
