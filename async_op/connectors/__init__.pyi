"""Sources with positions and sinks that replace an epoch: what a job reads, and where its outputs go."""

from .errors import (
    BrokenFile,
    ConnectorNotInstalled,
    ConnectorUnavailable,
    EpochsBehind,
    FileMissing,
    FileRefused,
    FileReplaced,
    FileShrank,
    FileVanished,
    InputReplaced,
    KafkaRefused,
    MalformedMessage,
    MalformedRecord,
    OffsetUnavailable,
    RecordTooLong,
    SinkContended,
    SinkFenced,
    SinkFolderRefused,
    SinkRefused,
    SinkUnavailable,
    TargetAhead,
    TargetMissing,
    TargetReplaced,
    TargetTaken,
    TopicReplaced,
    UnsupportedColumn,
    UnwritableValue,
)
from .files.sink import FileSink
from .files.source import FileSource
from .kafka.sink import KafkaSink
from .kafka.source import KafkaSource
from .sink import Sink
from .source import Item, PartitionId, Reached, Source, Undecodable
from .tables.delta import DeltaSink
from .tables.iceberg import IcebergSink
from .tables.postgres import PostgresSink

__all__ = [
    "BrokenFile",
    "ConnectorNotInstalled",
    "ConnectorUnavailable",
    "DeltaSink",
    "EpochsBehind",
    "FileMissing",
    "FileRefused",
    "FileReplaced",
    "FileShrank",
    "FileSink",
    "FileSource",
    "FileVanished",
    "IcebergSink",
    "InputReplaced",
    "Item",
    "KafkaRefused",
    "KafkaSink",
    "KafkaSource",
    "MalformedMessage",
    "MalformedRecord",
    "OffsetUnavailable",
    "PartitionId",
    "PostgresSink",
    "Reached",
    "RecordTooLong",
    "Sink",
    "SinkContended",
    "SinkFenced",
    "SinkFolderRefused",
    "SinkRefused",
    "SinkUnavailable",
    "Source",
    "TargetAhead",
    "TargetMissing",
    "TargetReplaced",
    "TargetTaken",
    "TopicReplaced",
    "Undecodable",
    "UnsupportedColumn",
    "UnwritableValue",
]
