"""A Kafka topic that takes each epoch once."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from async_op.connectors.epoch_gaps import Repeats
from async_op.connectors.epoch_rows import SinkRows
from async_op.connectors.errors import KafkaRefused, SinkFenced, TargetReplaced, TargetTaken, UnwritableValue
from async_op.connectors.kafka import client
from async_op.connectors.retrying import is_transient_of_library
from async_op.connectors.sink import SINK_RETRY, ShippedSink, Sink
from async_op.dead_letters import OnError
from async_op.retry import RetryPolicy
from keygroups.arguments import check_integer, check_text
from keygroups.context_managers import contextmanager

_log = logging.getLogger(__name__)
_BYTES_MAX = 1_000_000
"""What librdkafka sends at most as one message, unless `message.max.bytes` says otherwise."""
_COMMITS_MAX = 4
"""How often a commit is asked for that may be asked for again."""


_TAG = 2**32
"""What the number of a lineage is multiplied with in the note of an epoch, which is an offset of 63 bits."""


class KafkaSink(ShippedSink):
    """Writes each epoch into a topic in one transaction, once: for a job, or for a pipeline on Spark.

    It needs the extra ``kafka``.

    The transaction also commits the number of the epoch, as the lower 32 bits of an offset of a consumer group that
    bears the job's name; the upper ones tell the job from another one of this name, which is `TargetTaken`.
    So readers with ``isolation.level=read_committed`` see all of an epoch or nothing, and an epoch that comes again is
    left out. A newer sink of the same job fences the older one.

    Outputs are bytes or text, or dicts with ``value``, ``key`` and ``headers``; the last two may be left out. Headers
    are a list of tuples, or a dict, of names and values; a value is bytes, text or None. On Spark
    (``sink(batch_df, epoch)``) these are columns, and headers are an array of structs of ``key`` and ``value``, or a
    map.

    Parameters
    ----------
    topic : str
        The topic.
    name : str
        The job's id, unique on these brokers. A job that starts without its snapshots needs another.
    config : mapping
        Settings of librdkafka: ``bootstrap.servers``, and what security needs. They are passed on, and never shown.

    Raises
    ------
    ConfigError
        An argument is invalid, or a setting belongs to the connector.

    Notes
    -----
    Writing raises `SinkFenced` if a newer sink has taken over, `KafkaRefused` if the brokers refuse or do not answer,
    `EpochsBehind` if a job starts over under an old name, and `UnwritableValue`. Brokers forget the number of the epoch
    when a job has been idle for longer than their ``offsets.retention.minutes`` (a week by default).

    Examples
    --------
    >>> KafkaSink("enriched", "orders-job", {"bootstrap.servers": "broker:9092"})
    KafkaSink('enriched', 'orders-job')
    """

    def __init__(
        self,
        topic: str,
        name: str,
        config: Mapping[str, Any],
        *,
        on_error: OnError = "fail",
        retry: RetryPolicy | None = SINK_RETRY,
        dead_letters: Sink[Any] | None = None,
    ) -> None:
        super().__init__(on_error=on_error, retry=retry, dead_letters=dead_letters)
        self._name = check_text("name", name, reason="pass the job's id, which names its transactions")
        self._topic = client.check_topic(topic)
        self._group = f"keygroups-{name}"
        self._config = client.check_config(config, {"transactional.id": self._group})
        self._bytes_max = int(config.get("message.max.bytes", _BYTES_MAX))
        client.check_config(config, {"group.id": self._group})
        self._producer: Any = None
        self._consumer: Any = None
        self._repeats = Repeats(name)
        self._newest = -1
        self._takes_letters = False
        self._blamed: list[UnwritableValue] = []
        self._sends_singly = False

    def __repr__(self) -> str:
        """Show topic and name, and no setting."""
        return f"KafkaSink({self._topic!r}, {self._name!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is connected, too."""
        connected: dict[str, Any] = {"_producer": None, "_consumer": None, "_newest": -1, "_blamed": []}
        return super().__getstate__() | connected | {"_repeats": Repeats(self._name)}

    @property
    def place_of_notes(self) -> tuple[str, ...]:
        """The brokers and the name: two producers of one name would fence each other."""
        return str(self._config.get("bootstrap.servers")), self._name

    def prepare(self, schema: pa.Schema) -> None:
        """Check the columns of the rows that will come, so that a mistake is known before the first epoch.

        A pipeline on Spark does this when it starts. The brokers are not asked.

        Parameters
        ----------
        schema : pyarrow.Schema
            The columns.

        Raises
        ------
        UnwritableValue
            A row is no record.
        """
        check_columns(schema)

    def for_dead_letters(self) -> KafkaSink:
        """Return a sink that writes each dead letter as a record: JSON of its columns, by the id of the element."""
        letters = copy.copy(self)
        letters._takes_letters = True
        return letters

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        """Write an epoch in one transaction, unless it is there.

        Raises
        ------
        UnwritableValue
            An output is no record; nothing of the epoch has been sent.
        SinkFenced
            A newer sink of the job has taken over.
        KafkaRefused
            The brokers refuse, or do not answer.
        EpochsBehind
            A job starts over under an old name.
        """
        number = check_integer("epoch", epoch, 0, reason="epochs are numbered")
        records = [self._record(value, index) for index, value in enumerate(values)]
        await self._on_thread(lambda: self._write(lambda: records, number))

    async def refused(self, values: Sequence[Any]) -> list[UnwritableValue]:
        """Return an error for every output that is no record, or that the brokers have just refused; sends nothing."""
        return self._refused(values)

    def is_transient(self, error: Exception) -> bool:
        """Return whether brokers may be back soon."""
        return is_transient_of_library(error)

    def check_target(self) -> None:
        """Take over from an older sink of this job, unless the epochs under the name are not this job's; blocks."""
        self._connect()

    def look_at_target(self) -> None:
        """Compare what is noted in the brokers, without a producer, which would fence the one of a run; blocks."""
        with self._connected():
            self._consumer = client.load().Consumer(self._consumer_config(), logger=_log)
            self._newest = self._noted_epoch()
            self._check_epochs()
        self.disconnect()

    def write_rows(self, rows: SinkRows, epoch: int) -> None:
        """Write the rows of an epoch in one transaction, unless it is there; blocks.

        Rows come while the transaction is open. The connection stays for the next epoch.
        """
        number = check_integer("epoch", epoch, 0, reason="epochs are numbered")
        self._write(lambda: (self._record(record_of(row), at) for at, row in enumerate(rows.dicts())), number)

    def refused_rows(self, rows: SinkRows) -> list[UnwritableValue]:
        """Return an error for every row that is no record, or that the brokers have just refused; sends nothing."""
        return self._refused(map(record_of, rows.dicts()))

    def _refused(self, values: Iterable[Any]) -> list[UnwritableValue]:
        found = list(self._blamed)
        for index, value in enumerate(values):
            try:
                self._record(value, index)
            except UnwritableValue as error:
                found.append(error)
        return found

    def _record(self, value: Any, index: int) -> dict[str, Any]:
        if self._takes_letters:
            value = {"key": value["idempotency_key"], "value": json.dumps(value, ensure_ascii=False)}
        record = {"value": value} if isinstance(value, bytes | str) else value
        reason, part = _reason_against(record)
        if reason is None and (size := _size(record)) > self._bytes_max:
            reason = f"it has {size} bytes, and message.max.bytes is {self._bytes_max}"
        if reason is not None:
            raise UnwritableValue(value, reason, target=self._topic, column=part, index=index)
        found: dict[str, Any] = record
        return found

    # The methods below run on the thread, or on the thread of a pipeline on Spark.

    def _connect(self) -> None:
        kafka = client.load()
        with self._connected():
            self._producer = kafka.Producer(self._producer_config(), logger=_log)
            self._consumer = kafka.Consumer(self._consumer_config(), logger=_log)
            self._noted_epoch()  # before the sink of another job is fenced
            self._producer.init_transactions(client.REQUEST_SECONDS_MAX)
            self._newest = self._noted_epoch()  # negative if there is none
            self._check_epochs()

    def _check_epochs(self) -> None:
        if self.was_written and self._newest < 0:
            raise TargetReplaced(self._topic, self._name)
        self.check_ahead(self._topic, self._newest, "give the sink another name; the topic has these outputs twice")
        self.check_behind(self._topic, self._newest)

    def _noted_epoch(self) -> int:
        (found,) = self._consumer.committed([self._noted(-1001)], client.REQUEST_SECONDS_MAX)
        if found.error is not None:
            raise KafkaRefused(self._topic, found.error.str(), client.is_passing(found.error))
        if found.offset < 0:
            return int(found.offset)
        tag, epoch = divmod(found.offset, _TAG)
        if tag and self.lineage and tag != self._tag:
            raise TargetTaken(self._topic, self._name)
        return int(epoch)

    @property
    def _tag(self) -> int:
        """A number for the lineage. It is not the note's metadata, because not all brokers keep that."""
        digest = hashlib.blake2b(self.lineage.encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1 if self.lineage else 0

    def _producer_config(self) -> dict[str, Any]:
        alone = {"batch.num.messages": 1} if self._sends_singly else {}
        return {"delivery.report.only.error": "on_delivery" not in self._config} | self._config | alone

    def _consumer_config(self) -> dict[str, Any]:
        return client.for_consumer(self._config) | {"group.id": self._group, "enable.auto.commit": False}

    def _write(self, records: Callable[[], Iterable[dict[str, Any]]], epoch: int) -> None:
        """Write an epoch; if the brokers refuse a batch, send each record alone, to find which one is to blame.

        A topic may take less than `message.max.bytes`, and a compacted one takes no record without a key.
        """
        try:
            return self._write_once(records(), epoch)
        except UnwritableValue:
            if not self._blamed:
                raise
        self._sends_singly = True
        try:
            self._write_once(records(), epoch)
        except UnwritableValue:
            self._sends_singly = False  # the rest can be sent in batches again
            raise

    def _write_once(self, records: Iterable[dict[str, Any]], epoch: int) -> None:
        self._blamed = []
        if self._producer is None:
            self._connect()
        if epoch < self._newest:
            self._repeats.note(epoch, self._newest)
            return
        self._repeats.forget()
        if epoch == self._newest:
            return
        with self._connected():
            # Brokers remove the note with the topic, and would let the rest of the outputs into a new one.
            noted = self._noted_epoch()
            if self._newest >= 0 > noted:
                raise TargetReplaced(self._topic, self._name)
            self.check_behind(self._topic, noted)
            self._commit(records, epoch)
        self._newest = epoch
        self.was_written = True

    def _commit(self, records: Iterable[dict[str, Any]], epoch: int) -> None:
        self.note_tried(epoch)
        self._producer.begin_transaction()
        for index, record in enumerate(records):
            self._produce(record, index)
        noted, group = [self._noted(epoch)], self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(noted, group, client.REQUEST_SECONDS_MAX)
        for attempt in range(1, _COMMITS_MAX + 1):
            try:
                self._producer.commit_transaction(client.REQUEST_SECONDS_MAX)
            except client.load().KafkaException as error:
                if not error.args[0].retriable() or attempt == _COMMITS_MAX:
                    raise
            else:
                return

    def _produce(self, record: dict[str, Any], index: int) -> None:
        while True:
            try:
                self._producer.produce(self._topic, on_delivery=partial(self._blame, record, index), **record)
            except BufferError:  # the client's queue is full
                self._producer.poll(0.1)
            else:
                return

    def _blame(self, record: dict[str, Any], index: int, error: Any, message: Any) -> None:
        if "on_delivery" in self._config:
            self._config["on_delivery"](error, message)
        codes = client.load().KafkaError
        if error is not None and error.code() in {codes.MSG_SIZE_TOO_LARGE, codes.INVALID_RECORD}:
            self._blamed.append(UnwritableValue(record, error.str(), target=self._topic, index=index))

    def _noted(self, epoch: int) -> Any:
        return client.load().TopicPartition(self._topic, 0, epoch if epoch < 0 else self._tag * _TAG + epoch)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Disconnect if anything fails: the next connection ends the transaction, and learns in which way."""
        try:
            yield
        except client.load().KafkaException as error:
            self.disconnect()
            raise (self._blamed[0] if self._blamed else self._judged(error)) from error
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Disconnect; a transaction that is under way is aborted."""
        consumer, self._producer, self._consumer = self._consumer, None, None
        if consumer is not None:
            consumer.close()

    def _judged(self, error: Any) -> Exception:
        code = error.args[0].code()
        codes = client.load().KafkaError
        if code in {codes._FENCED, codes.INVALID_PRODUCER_EPOCH, codes.PRODUCER_FENCED}:
            return SinkFenced(self._name)
        return KafkaRefused(self._topic, error.args[0].str(), client.is_passing(error.args[0]))


def _reason_against(record: Any) -> tuple[str | None, str | None]:
    """Return why an output is no record, and the part of it that is wrong."""
    if not isinstance(record, dict) or "value" not in record:
        return "it is neither bytes, nor text, nor a dict with a value", None
    if unknown := [name for name in record if name not in PARTS]:
        return f"{unknown[0]!r} is none of {', '.join(PARTS)}", str(unknown[0])
    for part in ("key", "value"):
        if not _can_be_sent(record.get(part)):
            return f"its {part} is neither bytes nor text that UTF-8 has", part
    if not _are_headers(record.get("headers")):
        reason = "its headers are neither a list of tuples nor a dict of names and values, which are bytes or text"
        return reason, "headers"
    return None, None


def _size(record: dict[str, Any]) -> int:
    headers = record.get("headers") or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    parts = [record["value"], record.get("key"), *chain.from_iterable(pairs)]
    return sum(len(part.encode() if isinstance(part, str) else part) for part in parts if part is not None)


def _are_headers(headers: Any) -> bool:
    """Tell whether the client takes these headers; it looks at them only when the transaction is under way."""
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list | None):
        return False
    return all(isinstance(pair, tuple) and len(pair) == 2 and _is_header(*pair) for pair in pairs or ())


def _is_header(name: Any, value: Any) -> bool:
    return isinstance(name, str) and _can_be_sent(name) and _can_be_sent(value)


def _can_be_sent(part: Any) -> bool:
    """Tell whether the client can send a part of a record; text that cannot be encoded may crash it."""
    if isinstance(part, str):
        try:
            part.encode()
        except UnicodeEncodeError:
            return False
    return isinstance(part, bytes | str | None)


PARTS = ("value", "key", "headers")
"""What a record has; only the value is needed."""


def check_columns(schema: pa.Schema) -> None:
    """Check that rows with these columns are records, by name and type.

    Raises
    ------
    UnwritableValue
        There is no value, a column is no part of a record, or a column has an unusable type.
    """
    row = dict.fromkeys(schema.names)
    if "value" not in row:
        raise UnwritableValue(row, "there is no column 'value'")
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in PARTS:
            raise UnwritableValue(row, f"the column {name!r} is none of {', '.join(PARTS)}")
        if name == "headers" and not _can_be_headers(kind):
            reason = "neither array<struct<key: string, value: binary>> nor map<string, binary>"
            raise UnwritableValue(row, f"the column 'headers' is {reason}")
        if name != "headers" and not _is_text_or_bytes(kind):
            raise UnwritableValue(row, f"the column {name!r} is neither binary nor string")


def record_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a job would pass for a row, whose headers are structs in Spark."""
    headers = row.get("headers")
    return row | {"headers": [_header_of(header) for header in headers]} if isinstance(headers, list) else row


def _header_of(header: Any) -> Any:
    is_struct = isinstance(header, dict) and header.keys() == {"key", "value"}
    return (header["key"], header["value"]) if is_struct else header


def _can_be_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return kind.key_type == pa.string() and _is_text_or_bytes(kind.item_type)
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    types = {field.name: field.type for field in kind.value_type}
    return types.keys() == {"key", "value"} and types["key"] == pa.string() and _is_text_or_bytes(types["value"])


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    return kind in {pa.binary(), pa.string()}
