"""A run of `specdec decode` on tiny random models of bytes."""

import jax
import pytest
import yard

from specdec import checkpoints, cli


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A run's data: a TSV, and two models of 259 bytes, padded to different widths."""
    folder = tmp_path_factory.mktemp("run")
    yard.write_run(folder, folder.name)
    for name, width, vocab_size in (("target", 11, 261), ("draft", 7, 263), ("narrow", 7, 100)):
        target = yard.model(width, vocab_size)
        params = target.init(jax.random.key(width))
        checkpoints.save(folder / name, params, config=target.config)
    return folder


@pytest.fixture
def decode(folder, cache, capsys):
    """Runs `specdec decode` on the data; returns the exit code, stdout and stderr."""

    def run(*flags, gin_file="run.gin"):
        capsys.readouterr()
        kept = f"--compilation_cache_dir={cache}"
        code = cli.main(["decode", f"--gin_file={folder / gin_file}", kept, *flags])
        return code, *capsys.readouterr()

    return run
