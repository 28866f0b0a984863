"""`Job`: a source, a chain of steps and a sink in one process, exactly once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import replace
from os import PathLike
from signal import SIGINT
from typing import Any, Literal

from async_op.cancellation import run_to_end, to_the_end
from async_op.connectors.arrow_input import ArrowStream
from async_op.connectors.conformance import check_sinks, letters_sink_of
from async_op.connectors.sink import Sink
from async_op.connectors.source import Source
from async_op.durations import check_delay, check_positive_delay
from async_op.epochs.adoption import check_declared, check_fixed, check_kind, check_steps, warn_of_repartition
from async_op.epochs.position import JobPosition, SinkEpochs
from async_op.epochs.restarts import RestartPolicy, Restarts
from async_op.epochs.retention import Retention
from async_op.explanation import Explanation
from async_op.functions.plain import AnyFunction
from async_op.job.adapters import check_two_sinks, sink_of, source_of
from async_op.job.chain import Plan
from async_op.job.committing import Committer
from async_op.job.description import JobSituation, explained
from async_op.job.errors import JobAlreadyRunning, JobInsideEventLoop, JobNotRunning
from async_op.job.outputs import Collector
from async_op.job.positions import Positions
from async_op.job.processes.launch import check_spread, children_of, processes_of
from async_op.job.progress import JobProgress, shown
from async_op.job.run import Run, Setting, Stop
from async_op.job.signals import EndingSignals
from async_op.job.step import SOURCE, Step, steps_of
from async_op.job.waiting import told_if_long
from async_op.operator.key_columns import columns_of, key_getter
from async_op.operator.key_compatibility import checked_getter
from async_op.serving.http import serving_job
from async_op.shared_objects import Use
from async_op.threads.garbage import rare_collections
from async_op.threads.own_thread import on_own_thread, running_loop
from keygroups.arguments import Duration, check_flag, check_instance, check_location
from keygroups.errors import ConfigError
from keygroups.hashing import key_hasher
from keygroups.names import LINEAGE_NAME, OPERATOR_ID
from keygroups.ranges import check_parallelism, default_max_parallelism
from keygroups.representation import html_facts, representation
from snapshots import IncompatibleSnapshot, Snapshot, SnapshotStore
from snapshots.daemon_threads import DaemonPool
from snapshots.filesystem import Folder, ObjectFolder
from snapshots.folder_hints import newest_or_empty
from snapshots.lineage import check_lineage, lineage_of

DEFAULT_RETENTION = Retention()

_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""How many threads `asyncio.to_thread` has in `run_sync`: as many as elsewhere."""

_THREADS_SECONDS = 5.0
"""How long the end of `run_sync` waits for what still runs there."""

AnySource = Source[Any] | Iterable[Any] | AsyncIterable[Any] | ArrowStream
AnySink = Sink[Any] | Callable[[list[Any], int], Any]


class Job:
    """Reads a source, applies a chain of steps, and writes to a sink: exactly once, in one process and event loop.

    Each step has `parallelism` subtasks. Elements go to the subtask that owns their key. From time to time all steps
    are cut at the same moment while calls continue, and state, elements in flight, positions and outputs are committed
    together. Then the sink gets the outputs. After a crash the job continues from the newest snapshot: no finished call
    in it is repeated, and the sink gets each output exactly once if it replaces epochs that arrive again.

    `stop`, `rescale` and `progress` may be called from any thread, the coroutines only on the event loop of `run`.

    Parameters
    ----------
    source : Source, iterable, async iterable, data frame or table
        Where elements come from. An iterable is bounded, and must give the same elements after a restart. The rows of a
        data frame or an Arrow table come as dicts.
    steps : function, Step or list of them
        What is applied, in order.
    sink : Sink or callable
        Gets the outputs of each epoch: `sink(values, epoch)`, which may be a coroutine function. The same epoch may
        come again with the same values, and must then replace them. Empty epochs are left out.
    snapshots : str or path
        Where snapshots are kept: an fsspec URI or a local path.
    job_id : str
        The name of the job's folder there.
    parallelism : int, optional
        The number of subtasks of each step. By default what the newest snapshot says, else 1. The subtasks of a step
        share the limits of its `resilience`, and each has a `capacity` of its own.
    max_parallelism : int, optional
        The number of key groups, which is fixed once the first snapshot exists.
    snapshot_interval : float or timedelta, optional
        Seconds between two snapshots. Outputs reach the sink after the snapshot that they belong to. By default 1.0,
        and 10.0 where `snapshots` is in an object store, which takes longer and charges for each request.
    watermark_delay : float or timedelta, optional
        By how many seconds timestamps may be out of order. Without it there are no watermarks, and timers of event time
        fire only at the end of a bounded source.
    idle_timeout : float or timedelta, optional
        Seconds after which a quiet partition of an unbounded source holds back no watermark; by default never.
    dead_letters : Sink or callable, optional
        Gets the dead letters of steps and sources with `on_error="dead_letter"`, with their epoch: dicts with step,
        value (as text), value_encoding, timestamp, key, idempotency_key, attempts, error_type, error_message and
        error_traceback. Every shipped sink takes them, without a schema; `letter_value` returns the value.
    hash : {"xxhash64", "flink"}
        The hash that maps a key to its key group.
    idempotency_namespace : str, optional
        The first part of all idempotency keys, in place of a random one that the job keeps with its snapshots. Pass it,
        and a service recognises the calls of this job even after all of its snapshots are lost. Give each job a
        namespace of its own: letters, digits, `_`, `.`, `:` and `-`.
    restart : RestartPolicy, optional
        How often `run` restarts the job after a failure, from the newest snapshot. By default it raises the failure.
    retention : Retention, optional
        Which versions stay while the job runs; the others are removed in the background. None keeps all.
    storage_options : dict, optional
        Passed to the fsspec filesystem of `snapshots`.
    processes : int or "auto", optional
        How many worker processes run the steps. By default none: the steps run on the event loop of `run`. Otherwise
        each worker has its part of the subtasks of every step, and this process reads the source, routes and commits;
        use that for functions that keep a processor busy. "auto" means as many as there are processors, and no more
        than `parallelism`; the affinity of this process and the limit of its container count. Functions must be
        importable, as with `multiprocessing`.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Examples
    --------
    >>> import asyncio
    >>> async def price(order):
    ...     return {"item": order, "price": len(order)}
    >>> outputs = {}
    >>> job = Job(["tea", "salt"], price, lambda values, epoch: outputs.update({epoch: values}),
    ...           snapshots="memory://jobs", job_id="prices")
    >>> asyncio.run(job.run())
    >>> outputs
    {1: [{'item': 'tea', 'price': 3}, {'item': 'salt', 'price': 4}]}
    """

    def __init__(
        self,
        source: AnySource,
        steps: AnyFunction | Step | Sequence[AnyFunction | Step],
        sink: AnySink,
        *,
        snapshots: str | PathLike[str],
        job_id: str,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        snapshot_interval: Duration | None = None,
        watermark_delay: Duration | None = None,
        idle_timeout: Duration | None = None,
        dead_letters: AnySink | None = None,
        hash: str = "xxhash64",
        idempotency_namespace: str | None = None,
        restart: RestartPolicy | None = None,
        retention: Retention | None = DEFAULT_RETENTION,
        storage_options: dict[str, Any] | None = None,
        processes: int | Literal["auto"] | None = None,
    ) -> None:
        self._source = source_of(source)
        self._steps = self._given_steps = steps_of(steps)
        check_two_sinks(sink, dead_letters)
        self._sink = sink_of("sink", sink)
        self._dead_letters = None if dead_letters is None else letters_sink_of(sink_of("dead_letters", dead_letters))
        buries = [name for name, step in self._steps.items() if step.on_error == "dead_letter"]
        buries += [SOURCE] if self._source.on_error == "dead_letter" else []
        if buries and dead_letters is None:
            reason = f"{buries[0]!r} has on_error='dead_letter': pass where they go"
            raise ConfigError("dead_letters", dead_letters, reason)
        self._check_sinks()
        key_hasher(hash)
        self._hash = hash
        if idempotency_namespace is not None:
            LINEAGE_NAME.check("idempotency_namespace", idempotency_namespace)
        self._namespace = idempotency_namespace
        OPERATOR_ID.check("job_id", job_id)
        place = check_location("snapshots", snapshots, reason="name a folder for snapshots")
        self._store = SnapshotStore(place, job_id, storage_options=storage_options)
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        if parallelism is not None:
            check_parallelism(parallelism, self._key_groups(parallelism))
        elif max_parallelism is not None:
            check_parallelism(1, max_parallelism)
        self.spread(processes)
        self._interval = None
        if snapshot_interval is not None:
            self._interval = check_positive_delay("snapshot_interval", snapshot_interval, reason="outputs wait for it")
        self._positions = _positions_for(watermark_delay, idle_timeout, self._source.origin)
        reason = "pass an object of the class Retention, or None"
        check_instance("retention", retention, (Retention, type(None)), reason=reason)
        self._retention = retention
        reason = "pass an object of the class RestartPolicy, or None"
        check_instance("restart", restart, (RestartPolicy, type(None)), reason=reason)
        self.restart = restart
        self._run: Run | None = None
        self._before = JobProgress(job_id=self._store.operator_id)
        """What was done before the newest run; shown while there is none."""
        self._chosen = self._rescaled_to = parallelism
        """What the constructor has chosen, and after a restart what `rescale` has chosen since `run` was called."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: list[Callable[[Run], None]] = []
        self._is_stopping = False
        self._lock = threading.RLock()

    def _check_sinks(self) -> None:
        own = getattr(self._sink, "dead_letters", None)
        if own is not None:
            if self._dead_letters is not None:
                raise ConfigError("dead_letters", own, "the sink and the job have one each: pass it to the job only")
            self._dead_letters = letters_sink_of(own)
        check_sinks(self._sink, self._dead_letters)

    def __repr__(self) -> str:
        return representation(self, self._facts())

    def _repr_html_(self) -> str:
        return html_facts(f"job {self._store.operator_id}", self._facts())

    def _facts(self) -> dict[str, object]:
        return {
            "snapshots": self._store.uri,
            "steps": list(self._steps),
            "parallelism": self._parallelism,
            "is_running": self._loop is not None,
        }

    def spread(self, processes: int | Literal["auto"] | None) -> None:
        """Choose how many worker processes the next run has, as the constructor's `processes` does.

        Raises
        ------
        ConfigError
            There are more of them than subtasks, or other processes cannot read the snapshots.
        NotSendable
            A step cannot be pickled.
        """
        self._processes = processes_of(processes, self._parallelism)
        if self._processes is not None:
            check_spread(self._steps, self._store.uri)

    async def explain(self) -> Explanation:
        """Return what `run` would do, and what looks wrong; nothing is claimed, called or written.

        Ask a new version of a program before it takes over from the one that runs: a run that is refused has fenced
        the other one by then. It reads the newest snapshot, opens the source, asks it for its partitions and closes
        it, and looks at the targets of sinks of this package, once and without retries. Sinks of your own are not
        opened, and neither are functions. While this object runs, it looks at the snapshot only.

        Examples
        --------
        >>> print(asyncio.run(job.explain()))  # doctest: +SKIP
        """
        situation = await on_own_thread(self._situation)
        return await explained(situation, looks_around=self._loop is None)

    async def run(self, *, show_progress: bool = False, serve: str | None = None) -> None:
        """Run until a bounded source has ended, or until `stop`; then all outputs have been delivered.

        After a failure it raises the error, or restarts by the policy `restart`. A restart keeps what `rescale` has
        chosen, and `stop` ends the pause before it: the job starts once more, to stop as you asked.

        If it is cancelled, it finishes a commit that is under way and then stops, as in a crash. You can start it
        again, in this process or another, and it continues from the newest snapshot.

        Parameters
        ----------
        show_progress : bool
            Whether to show a live progress line, in a notebook or on a terminal, which needs rich (the extra ``cli``).
        serve : str, optional
            Host and port of a small HTTP server that shows the job while it runs, such as "127.0.0.1:8080":
            ``/healthz`` and ``/readyz`` for probes, ``/metrics`` for Prometheus, ``/progress`` as JSON, and a page at
            ``/``. It has no password, so restrict who can reach it.

        Raises
        ------
        PackageNotInstalled
            The progress is to be shown outside of a notebook, and rich is not installed.
        JobAlreadyRunning
            It runs already.
        AddressUnavailable
            `serve` cannot be listened on.
        IncompatibleSnapshot
            The newest snapshot has a step that this job does not have, or another max parallelism, hash, lineage or
            keys.
        ConfigError
            `rescale` was called before the snapshot was read, and the snapshot has fewer key groups than that.
        ElementFailed, AsyncTimeoutError
            An element has failed for good, and its step's `on_error` is "fail". The newest snapshot has it in flight.
        """
        with self._lock:
            if self._loop is not None:
                raise JobAlreadyRunning(self._store.operator_id)
            self._loop = asyncio.get_running_loop()
            self._run = None  # from now on, requests go to this run
            self._before = JobProgress(job_id=self._store.operator_id)
            self._chosen = self._rescaled_to = self._parallelism
            self._is_stopping = False
            self._hurry = asyncio.Event()
        try:
            async with AsyncExitStack() as beside:
                if serve is not None:
                    await beside.enter_async_context(serving_job(serve, self))
                if show_progress:
                    await beside.enter_async_context(shown(self.progress))
                await self._run_and_restart()
        finally:
            with self._lock:
                self._loop = None
                self._asked.clear()

    async def _run_and_restart(self) -> None:
        restarts = Restarts(self.restart, f"job {self._store.operator_id}")
        while True:
            restarts.began(asyncio.get_running_loop().time())
            try:
                return await self._run_once()
            except Exception as error:
                delay = self._delay_after(error, restarts, asyncio.get_running_loop().time())
                if delay is None:
                    raise
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), delay)

    def _delay_after(self, error: Exception, restarts: Restarts, now: float) -> float | None:
        """Return the seconds until the next run, which gets what is asked for from now on; None if there is none."""
        with self._lock:
            delay = None if self._is_stopping else restarts.delay_after(error, now)
            if delay is not None:
                newest = replace(self.progress(), state="restarting")
                self._before = replace(newest, restarts=restarts.count, newest_failure=restarts.newest_failure)
                self._run = None
                self._chosen = self._rescaled_to
            return delay

    async def _run_once(self) -> None:
        of_letters = nullcontext() if self._dead_letters is None else Use(self._dead_letters)
        of_source, of_sink = Use(self._source), Use(self._sink)
        with of_source as source, of_sink as sink, of_letters as dead_letters:
            run = await self._prepare(source, sink, dead_letters)
            with self._lock:
                for ask in self._asked:
                    ask(run)
                self._asked.clear()
                self._run = run
            await run.go()

    def run_sync(self, *, show_progress: bool = False, serve: str | None = None) -> None:
        """Run in an event loop of its own, for programs without one.

        The first Ctrl-C or SIGTERM stops the job at a cut, and this returns. A second one gives up at once and raises
        `KeyboardInterrupt`, or `SystemExit` for SIGTERM, once a commit that is under way has ended. A third one ends
        the process. On any other thread than the main one, signals have no effect. A blocked call does not delay
        the end of the program: its thread ends with the process. Meanwhile Python looks for cyclic garbage less often
        in the whole process, because it would look at everything in flight again and again.

        Parameters
        ----------
        show_progress, serve
            As for `run`.

        Raises
        ------
        JobInsideEventLoop
            An event loop runs already in this thread.
        """
        if running_loop() is not None:
            raise JobInsideEventLoop(self._store.operator_id)
        signals = EndingSignals(self._stop_at_cut)
        with rare_collections():
            run_to_end(self._run_alone(signals, self.run(show_progress=show_progress, serve=serve)))
        if signals.gave_up_at is SIGINT:
            raise KeyboardInterrupt
        if signals.gave_up_at is not None:
            raise SystemExit(128 + signals.gave_up_at)  # as a shell tells that a signal has ended a process

    async def _run_alone(self, signals: EndingSignals, run: Coroutine[Any, Any, None]) -> None:
        # Threads of `asyncio.to_thread` that hang would keep the program alive, in 3.11 even this method.
        threads = DaemonPool(_THREADS, "keygroups loop", _THREADS_SECONDS)
        asyncio.get_running_loop().set_default_executor(threads)
        await signals.wait_for(run)

    def stop(self, *, drain: bool = True) -> None:
        """End the run: `run` returns once everything is committed and delivered.

        Parameters
        ----------
        drain : bool
            Whether to finish what is in flight; timers that are not due yet stay in the snapshot. If false, the job
            stops at a cut, the snapshot has what is in flight, and the next run continues with it.
        """
        check_flag("drain", drain)
        how: Stop = "drain" if drain else "cut"
        with self._lock:
            self._ask(lambda run: run.stop(how))
            self._is_stopping = True
            self._hear(self._hurry.set)

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism at a cut, which is made at once. Calls under way are repeated.

        Parameters
        ----------
        parallelism : int
            The new number of subtasks of each step. The next start takes it from the snapshot, unless the constructor
            was given a number.

        Raises
        ------
        ConfigError
            It is not between 1 and the max parallelism. While the job has not read its snapshot yet, which knows the
            max parallelism, `run` raises this error in place of this method.
        JobNotRunning
            The job is not running, or `stop` was called: a job that ends keeps its parallelism.
        """
        with self._lock:
            if self._is_stopping:
                raise JobNotRunning(self._store.operator_id)
            run = self._run
            check_parallelism(parallelism, self._key_groups(parallelism) if run is None else run.max_parallelism)
            self._ask(lambda run: run.rescale(parallelism))
            self._rescaled_to = parallelism

    async def snapshot(self) -> int:
        """Commit a snapshot now, and return its version; it waits for no call.

        Raises
        ------
        JobNotRunning
            The job is not running, or ends.
        """
        if self._run is None or self._loop is None:
            raise JobNotRunning(self._store.operator_id)
        return await self._run.snapshot()

    def progress(self) -> JobProgress:
        """Return what the job has done since it was started, or restarted."""
        run, before = self._run, self._before
        if run is None:
            return before
        return replace(run.progress(), restarts=before.restarts, newest_failure=before.newest_failure)

    def _ask(self, ask: Callable[[Run], None]) -> None:
        with self._lock:
            if self._loop is None:
                raise JobNotRunning(self._store.operator_id)
            if self._run is None:
                self._asked.append(ask)
                return
            self._hear(ask, self._run)

    def _hear(self, call: Callable[..., None], *arguments: Any) -> None:
        """Have the event loop of `run` call something."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has been closed, and the run with it
                self._loop.call_soon_threadsafe(call, *arguments)

    async def _prepare(self, source: Source[Any], sink: Sink[Any], dead_letters: Sink[Any] | None) -> Run:
        # A claim is a commit: one that was left half done would fence off the run that comes next.
        committer = Committer(
            self._store, self._retention, {name: columns_of(step.key_by) for name, step in self._given_steps.items()}
        )
        with told_if_long(f"taking over the snapshots of job {self._store.operator_id}"):
            claiming = asyncio.ensure_future(on_own_thread(self._claim, committer))
            lineage, sink_epochs = await to_the_end(claiming)
        snapshot = committer.snapshot
        parallelism = self._starting_parallelism(self._chosen, snapshot)
        max_parallelism = self._key_groups(parallelism) if snapshot is None else snapshot.max_parallelism
        check_parallelism(parallelism, max_parallelism)
        collector = Collector()
        are_decoded = self._source.is_decoded
        plan = Plan.of(self._steps, self._hash, max_parallelism, lineage, collector, are_decoded=are_decoded)
        setting = Setting(
            job_id=self._store.operator_id,
            source=source,
            sink=sink,
            dead_letters=dead_letters,
            plan=plan,
            snapshot_interval=self._interval or _default_interval(self._store.folder),
            positions=self._positions(),
            sink_epochs=sink_epochs,
            children=None if self._processes is None else children_of(plan, self._steps, self._processes),
        )
        return Run(setting, committer, collector, parallelism)

    def _claim(self, committer: Committer) -> tuple[str, SinkEpochs]:
        """Take over the job's snapshots, if they are its own; returns the lineage, and what the sinks have by then."""
        folder = self._store.folder
        latest = newest_or_empty(folder)
        if latest is None:
            return lineage_of(folder, None, self._namespace), SinkEpochs.of(None)
        self._steps = self._fitted_steps(latest, self._chosen)
        if self._chosen == self._parallelism:  # what `rescale` has chosen since undoes no command
            warn_of_repartition(latest, JobPosition.of(latest).parallelism, self._chosen)
        lineage = lineage_of(folder, latest.manifest, self._namespace)
        committer.take_over()
        return lineage, SinkEpochs.of(committer.snapshot)

    def _fitted_steps(self, latest: Snapshot, parallelism: int | None) -> dict[str, Step]:
        """Return the steps, with what compares their keys with stored ones.

        Raises
        ------
        IncompatibleSnapshot
            The job does not fit the newest snapshot.
        """
        check_kind(latest, is_of_job=True)
        check_steps(latest, (SOURCE, *self._given_steps))
        check_fixed(latest, max_parallelism=self._max_parallelism, hash=self._hash, parallelism=parallelism)
        for name, step in self._given_steps.items():
            check_declared(latest, step.options(self._hash, lambda _: None), name)
        return {name: self._with_checked_keys(latest, name, step) for name, step in self._given_steps.items()}

    def _situation(self) -> JobSituation:
        """Return what a run would begin with now; blocks."""
        latest = newest_or_empty(self._store.folder)
        parallelism = self._starting_parallelism(self._parallelism, latest)
        max_parallelism = self._key_groups(parallelism) if latest is None else latest.max_parallelism
        misfit = None
        try:
            if latest is not None:
                self._fitted_steps(latest, self._parallelism)
                check_lineage(latest.manifest, self._namespace)
            check_parallelism(parallelism, max_parallelism)
        except (IncompatibleSnapshot, ConfigError) as refused:
            misfit = str(refused)
        return JobSituation(
            store=self._store,
            latest=latest,
            undelivered=0 if latest is None else len(latest.undelivered()),
            misfit=misfit,
            source=self._source,
            sink=self._sink,
            dead_letters=self._dead_letters,
            steps=self._given_steps,
            hash=self._hash,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            is_asked=self._parallelism is not None,
            processes=self._processes,
            positions=self._positions(),
            namespace=self._namespace,
        )

    def _with_checked_keys(self, latest: Snapshot, name: str, step: Step) -> Step:
        wanted, found = columns_of(step.key_by), JobPosition.of(latest).keys.get(name)
        getter = key_getter(step.key_by)
        checked = checked_getter(latest, name, getter, wanted, found)
        return step if checked is getter else replace(step, key_by=checked)

    def _key_groups(self, parallelism: int) -> int:
        """Return the number of key groups of a job that has no snapshot yet."""
        return self._max_parallelism or default_max_parallelism(parallelism)

    def _starting_parallelism(self, chosen: int | None, snapshot: Snapshot | None) -> int:
        if chosen is not None:
            return chosen
        return self._processes or 1 if snapshot is None else snapshot.parallelism

    def _stop_at_cut(self) -> None:
        with suppress(JobNotRunning):
            self.stop(drain=False)


def _default_interval(folder: Folder) -> float:
    """Return the seconds between two snapshots of a job that names none."""
    return 10.0 if isinstance(folder, ObjectFolder) else 1.0


def _positions_for(
    watermark_delay: Duration | None, idle_timeout: Duration | None, origin: str
) -> Callable[[], Positions]:
    delay = idle = None
    if watermark_delay is not None:
        delay = round(1000 * check_delay("watermark_delay", watermark_delay, reason="None means no watermarks"))
    if idle_timeout is not None:
        idle = check_positive_delay("idle_timeout", idle_timeout, reason="None means never")
    return lambda: Positions(delay, idle, origin)
