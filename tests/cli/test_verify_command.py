"""What `specdec verify` certifies, keeps and returns: pytest tests/cli/test_verify_command.py"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdec.cli import verify
from specdec.common.records import RecordsError


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs the command on a stub of a certificate; the checks that passed are in two files."""
    file = tmp_path / "certificate.json"
    passed = Path(f"{file}.checks.jsonl"), Path(f"{file}.checks.jsonl.gin")
    args, asked = argparse.Namespace(output_file=str(file), dry_run=True), []

    def run(outcome):
        def certify(variant, say, announce, checks):
            asked.append((variant, say, announce, checks))
            for path in passed:
                path.touch()
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        monkeypatch.setattr(verify, "variant", lambda *given, **named: (given, named))
        monkeypatch.setattr(verify, "certify", certify)
        try:
            return verify.command(args)
        finally:
            run.kept = [path.exists() for path in passed]
            given = ((args,), {"unmarked": True, "drafts": True})
            assert asked.pop() == (given, verify.say, verify.announce, passed[0])

    return run


@pytest.mark.parametrize("certified, code", [(True, 0), (False, 1)])
def test_the_exit_code_says_whether_it_is_certified(command, capsys, certified, code):
    written = []
    found = SimpleNamespace(write=written.append, verdict="WORDS", certified=certified)
    assert command(found) == code and command.kept == [False, False]
    (file,) = written
    assert capsys.readouterr().out == f"WORDS; figures in {file}\n"


@pytest.mark.parametrize(
    "error, kept",
    [(RecordsError("another run's"), True), (KeyboardInterrupt(), True), (ValueError("x"), False)],
)
def test_passed_checks_are_kept_for_a_run_that_goes_on(command, error, kept):
    with pytest.raises(type(error)):
        command(error)
    assert command.kept == [kept, kept]
