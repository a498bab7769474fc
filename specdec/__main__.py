"""The `specdec` command, also `python -m specdec`."""

import os
import sys
import time


def main() -> int:
    """Runs the command line and returns the exit code; prints "starting" before JAX is imported."""
    begun = time.perf_counter() - time.process_time()
    _leave_current_folder()
    _end_in_one_line()
    _fill_closed_streams()
    from specdec.common import progress

    with progress.shown_on(sys.stderr, begun):
        try:
            with progress.stage("starting", "starting"):
                from specdec import cli
        except ValueError as error:  # JAX reads environment variables when it is imported
            given = ", ".join(name for name in os.environ if name.startswith("JAX_"))
            if not given:
                raise
            said = " ".join(str(error).splitlines())
            print(f"specdec: JAX: {said}; correct or unset one of {given}", file=sys.stderr)
            return 2
        return cli.main()


def _leave_current_folder() -> None:
    """Removes the current folder from Python's path, to which `python -m` adds it.

    An untrusted folder might contain a `jinja2.py`. In a checkout of specdec nothing changes. The
    change also applies to processes that this process starts.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    here, package = os.path.realpath("."), os.path.dirname(os.path.realpath(__file__))
    if os.path.dirname(package) != here:
        sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) != here]


def _end_in_one_line() -> None:
    """Makes SIGINT and SIGTERM end this process with a one-line message until `cli` is imported.

    An exception during an import could be caught there, or cause others.
    """
    import signal

    def end(number: int, _: object) -> None:
        code, what = ends[signal.Signals(number)]
        clear = "\r\x1b[K" if os.isatty(2) and os.environ.get("TERM") != "dumb" else ""
        os.write(2, f"{clear}specdec: {what}; give the command again\n".encode())
        os._exit(code)

    ends = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}
    for number in ends:
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` and `&` ignore signals
            signal.signal(number, end)


def _fill_closed_streams() -> None:
    """Opens the null device in place of closed standard streams.

    Otherwise the next opened file would get a stream's number. A closed stdout is refused later.
    """
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
