"""Two processes with four CPU devices each are one mesh: pytest tests/cli/test_multihost.py"""

import json

import pytest
from support import started, two_hosts
from tolerances import PROBABILITIES

LIMIT, ROWS = 7, 4  # the last batch has a row of padding
RUN = [
    "--gin_file=demo.gin",
    "--gin_file=sampling/temperature.gin",
    "--gin_file=verifiers/coupled.gin",
    f"--limit={LIMIT}",
    "--num_samples=2",
    f"--gin.BATCH_SIZE={ROWS}",
]


def together(command, *flags):
    """Both processes' standard output."""
    both = two_hosts(command, *flags)
    done = [process.communicate(timeout=500) for process in both]
    assert all(process.returncode == 0 for process in both), done
    return [out for out, _ in done]


def evaluated(folder, partitions):
    """Both processes' standard output of an evaluation."""
    flags = "--metric=bleu", f"--output_dir={folder}", f"--gin.NUM_PARTITIONS={partitions}"
    return together("eval", *RUN, *flags)


def predictions(folder):
    """By sample and index, but for log-probabilities, whose sums over devices round otherwise."""
    found = {}
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            assert (place := (record["sample"], record["index"])) not in found
            found[place] = {name: x for name, x in record.items() if name != "log_probs"}
    assert len(found) == 2 * LIMIT
    return found


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())["metrics"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    process = started("eval", *RUN, "--metric=bleu", f"--output_dir={folder}", devices=1)
    assert process.communicate(timeout=500) and process.returncode == 0
    return folder


@pytest.mark.slow
def test_a_mesh_over_two_processes_predicts_what_one_device_does(alone, tmp_path):
    outs = evaluated(tmp_path, partitions=4)
    assert predictions(tmp_path) == predictions(alone)
    assert metrics(tmp_path) == metrics(alone)
    assert sum("bleu" in out for out in outs) >= 1
    files = sorted(path.name for path in tmp_path.glob("predictions*"))
    assert files == [f"predictions-0000{host}-of-00002.jsonl" for host in (0, 1)]
    # Interrupted at different places, and one line torn: both go on from the same batch.
    for name, lines in zip(files, (3, 5), strict=True):
        whole = (tmp_path / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join(whole[:lines]) + whole[lines][:9])
    (tmp_path / "metrics.json").unlink()
    evaluated(tmp_path, partitions=4)
    assert predictions(tmp_path) == predictions(alone)
    assert metrics(tmp_path) == metrics(alone)


@pytest.mark.slow
def test_a_model_over_two_processes_is_written_once(alone, tmp_path):
    evaluated(tmp_path, partitions=8)
    assert predictions(tmp_path) == predictions(alone)
    assert [path.name for path in tmp_path.glob("predictions*")] == ["predictions.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--gin.NUM_PARTITIONS=4"], ["--gin.BATCH_SIZE=2"]])
def test_the_first_of_two_hosts_writes_what_one_process_decodes(alone, tmp_path, flags):
    """Over one mesh, and each host on its own."""
    outs = together("decode", *RUN, *flags, f"--output_file={tmp_path / 'out.jsonl'}")
    assert predictions(tmp_path) == predictions(alone)
    assert "draft" not in outs[1]


@pytest.mark.slow
def test_two_hosts_measure_the_acceptance_of_one_process(tmp_path):
    flags = ["--gin_file=demo.gin", f"--gin.BATCH_SIZE={ROWS}", "--tokens=150", "--tables"]
    files = [tmp_path / name for name in ("alone.jsonl", "both.jsonl")]
    process = started("acceptance", *flags, f"--output_file={files[0]}", devices=1)
    assert process.communicate(timeout=500) and process.returncode == 0
    together("acceptance", *flags, "--gin.NUM_PARTITIONS=2", f"--output_file={files[1]}")
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert len(lines[0]) == len(lines[1]) > ROWS
    for one, other in zip(*lines, strict=True):
        assert one["output"] == other["output"]
        for name, rates in one["accepted"].items():
            assert other["accepted"][name] == pytest.approx(rates, abs=PROBABILITIES)
