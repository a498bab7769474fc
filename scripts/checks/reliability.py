"""Kills commands at random moments, and fills the disk under them; the figures of
docs/log/reliability-log.md.

    python scripts/checks/reliability.py kill [--times 20]
    python scripts/checks/reliability.py full     # as root: it mounts a small file system

Each of `eval`, `bench` and `train` is run once undisturbed. Then it is started again and again, and
stopped by SIGKILL after a time drawn uniformly from the undisturbed run's, until one start ends by
itself: its files must be those of the undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

from specdec import checkpoints

TRAIN = """
from __gin__ import dynamic_registration
from specdec import tasks
from specdec.models import t5
include 'train.gin'
include 'tasks/local.gin'
MODEL = @t5.T5Target()
t5.T5Target.config = @t5.T5Config()
t5.T5Config.vocab_size = 259
t5.T5Config.emb_dim = 32
t5.T5Config.num_heads = 2
t5.T5Config.head_dim = 16
t5.T5Config.mlp_dim = 64
t5.T5Config.num_encoder_layers = 1
t5.T5Config.num_decoder_layers = 1
VOCABULARY = @tasks.Bytes()
TASK_NAME = 'reversed'
TASK_FILES = {'train': 'FOLDER/train.tsv'}
TASK_FEATURE_LENGTHS = {'inputs': 16, 'targets': 16}
BATCH_SIZE = 8
STEPS = 60
CHECKPOINT_EVERY = 10
"""


Commands = dict[str, tuple[list[str], Callable[[Path], object]]]


def commands(folder: Path) -> Commands:
    """Name -> what is run, without its output, and what must be the same of that."""
    (folder / "train.tsv").write_text("".join(f"{n}\t{n[::-1]}\n" for n in map(str, range(200))))
    (folder / "train.gin").write_text(TRAIN.replace("FOLDER", str(folder)))
    eval_ = ["eval", "--gin_file=demo_sampled.gin", "--limit=40", "--output_dir=OUT"]
    bench = ["bench", "--gin_file=demo.gin", "--limit=6", "--repeats=2", "--output_file=OUT/b"]
    train = ["train", f"--gin_file={folder / 'train.gin'}", "--output_dir=OUT"]
    return {"eval": (eval_, evaluated), "bench": (bench, benchmarked), "train": (train, trained)}


def evaluated(out: Path) -> object:
    return {name: (out / name).read_bytes() for name in ("predictions.jsonl", "metrics.json")}


def benchmarked(out: Path) -> object:
    """What was measured, without the times."""
    lines = map(json.loads, (out / "b").read_text().splitlines())
    assert (out / "b.summary.json").exists()
    return sorted(json.dumps({k: v for k, v in x.items() if k != "seconds"}) for x in lines)


def trained(out: Path) -> object:
    timed = {"seconds", "tokens_per_second"}
    lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    log = [{k: v for k, v in line.items() if k not in timed} for line in lines]
    arrays = jax.tree.map(np.asarray, checkpoints.load(out / "export"))
    digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in jax.tree.leaves(arrays)))
    return log, digest.hexdigest(), sorted(p.name for p in out.iterdir() if p.name[0] != ".")


def start(command: list[str], out: Path, log: Path) -> subprocess.Popen:
    arguments = [part.replace("OUT", str(out)) for part in command]
    with log.open("a") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "specdec", *arguments], stdout=stream, stderr=stream
        )


def whole(command: list[str], out: Path, log: Path) -> float:
    """Runs a command to its end; its seconds."""
    begin = time.perf_counter()
    code = start(command, out, log).wait()
    if code:
        raise SystemExit(f"{command[0]} exits with {code}; its output is in {log}")
    return time.perf_counter() - begin


def kill(times: int, folder: Path, chosen: Commands) -> Iterator[str]:
    draws = random.Random(0)
    for name, (command, result) in chosen.items():
        log, undisturbed = folder / f"{name}.log", folder / name / "whole"
        undisturbed.mkdir(parents=True)
        seconds = whole(command, undisturbed, log)  # with compilation
        shutil.rmtree(undisturbed)
        undisturbed.mkdir()
        seconds = whole(command, undisturbed, log)
        expected = result(undisturbed)
        kills, rounds = 0, 0
        while kills < times:
            out = folder / name / str(rounds)
            out.mkdir()
            rounds += 1
            while kills < times:
                process = start(command, out, log)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    if process.wait(draws.uniform(0, seconds)):
                        raise SystemExit(f"{name} cannot go on; see {log}")
                    break
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
            whole(command, out, log)
            if result(out) != expected:
                raise SystemExit(f"{name}: {out} is not {undisturbed}")
        yield f"{name}: {kills} kills in {rounds} runs of {seconds:.0f} s, all end as undisturbed"


def full(times: int, folder: Path, chosen: Commands) -> Iterator[str]:
    disk = folder / "disk"
    disk.mkdir()
    for name, (command, result) in chosen.items():
        log, undisturbed = folder / f"{name}.log", folder / name / "whole"
        undisturbed.mkdir(parents=True)
        whole(command, undisturbed, log)
        expected = result(undisturbed)
        size = sum(file.stat().st_size for file in undisturbed.rglob("*") if file.is_file())
        for place in range(times):
            room = 4096 + int(size * place / times)
            mount(disk, room)
            out = disk / "out"
            log.write_text("")
            code = start(command, out, log).wait()
            said = log.read_text()
            line = said.splitlines()[-1]
            subprocess.run(["mount", "-o", f"remount,size={64 << 20}", str(disk)], check=True)
            whole(command, out, log)
            same = result(out) == expected
            subprocess.run(["umount", str(disk)], check=True)
            yield f"{name}, room for {room} bytes: exit code {code}, {line!r}; then as undisturbed"
            if not same or code != 2 or said.count("No space left") != 1 or "Traceback" in said:
                raise SystemExit(f"{name} with room for {room} bytes; see {log}")


def mount(disk: Path, room: int) -> None:
    """A file system in memory with so many bytes; the folder of the output is there."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(disk)], check=True)
    (disk / "out").mkdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("kill", "full"))
    parser.add_argument("--times", type=int, help="default: 20 kills, 5 places")
    parser.add_argument("--only", choices=("eval", "bench", "train"), help="default: all three")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="reliability."))
    chosen = commands(folder)
    if args.only:
        chosen = {args.only: chosen[args.only]}
    way, times = {"kill": (kill, 20), "full": (full, 5)}[args.what]
    work = way(args.times or times, folder, chosen)
    for line in work:
        print(line, flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
