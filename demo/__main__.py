"""Run the demo: enrich real flights, kill the driver, rescale, go on, rescale on the fly, compare with a batch job."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from demo.latency import MEDIAN_SECONDS, Latency
from demo.process import ChildFailed
from demo.workspace import Workspace

_FLIGHTS_MIN = 1_000
_QUICK_FLIGHTS = 20_000


def main() -> int:
    """Run the demo.

    Returns
    -------
    int
        The exit code: 0 if every flight came out exactly once with every value right, else 1; 130 after Ctrl-C.
    """
    arguments = _parse()
    signal.signal(signal.SIGTERM, _stop)
    workspace = Workspace(arguments.output.resolve())
    print("reading the flights and starting Valkey; Spark logs to files, so no warning of it is seen here", flush=True)
    # pandas and matplotlib take seconds; until then, the reader has seen that something happens.
    from demo.scenario import play

    try:
        summary = play(workspace, arguments.flights, Latency(arguments.latency, arguments.seed))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except ChildFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    summary.save(workspace.summary)
    summary.show()
    if not summary.equal:
        print(f"the rows differ from the batch job's: see {workspace.comparison}", file=sys.stderr)
        return 1
    if not arguments.keep:
        workspace.discard_bulk()
    print(f"figures: {workspace.summary}\npicture: {workspace.plot}")
    print(f"what was in flight: keygroups inspect {workspace.operator} --version {summary.version_at_crash}")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--flights",
        type=_flights,
        metavar="N",
        help=f"only the first so many flights, at least {_FLIGHTS_MIN:,}; 'all' are 336,776 (default: all)",
    )
    parser.add_argument(
        "--quick",
        action="store_const",
        const=_QUICK_FLIGHTS,
        dest="flights",
        help=f"only the first {_QUICK_FLIGHTS:,} flights: about a minute",
    )
    parser.add_argument(
        "--latency",
        type=_latency,
        default=MEDIAN_SECONDS,
        metavar="SECONDS",
        help="median of the calls' latency; one in a hundred takes fifty times as long (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=2013, help="of the latencies (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the stream and the delivered rows too")
    return parser.parse_args()


def _flights(text: str) -> int | None:
    if text == "all":
        return None
    if int(text) < _FLIGHTS_MIN:
        raise argparse.ArgumentTypeError(f"fewer than {_FLIGHTS_MIN:,} are done before a kill could hit them")
    return int(text)


def _latency(text: str) -> float:
    if float(text) <= 0:
        raise argparse.ArgumentTypeError("with no latency nothing is in flight when the driver is killed")
    return float(text)


def _stop(signum: int, frame: FrameType | None) -> None:
    # As an exception, so that every context on the way out ends its process.
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
