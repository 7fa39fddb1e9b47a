"""Ottla: Kafka as Arrow tables from Python, with a proof that no record was lost.

The names below are the public API of this package. Each is imported when first used, so that `import ottla` stays
cheap. Packages with their own API: `ottla.cluster` (local brokers), `ottla.testing` (a fake broker).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy
from ottla._version import VERSION

if TYPE_CHECKING:
    from ottla.admin import (
        Admin,
        NewTopic,
        OffsetSpec,
        TopicDescription,
    )
    from ottla.admin.committed import (
        Committed,
    )
    from ottla.config import (
        OAuthBearer,
        Plain,
        Retry,
        Scram,
        Security,
        Timeouts,
        Tls,
    )
    from ottla.consume.consumer import (
        Consumer,
    )
    from ottla.consume.listener import (
        Listener,
    )
    from ottla.consume.options import (
        GroupOptions,
        Protocol,
    )
    from ottla.engines.fleet.fleet import (
        Fleet,
    )
    from ottla.engines.fleet.planning import (
        Units,
    )
    from ottla.engines.fleet.unit import (
        Unit,
    )
    from ottla.engines.fleet.units import (
        Charter,
    )
    from ottla.errors import (
        ArchiveIncomplete,
        AuthenticationFailed,
        BrokerError,
        BufferFull,
        CommitFailed,
        ConfigError,
        ConnectFailed,
        ConnectionLost,
        CorruptBatch,
        DeadlineExceeded,
        EngineFailed,
        Fenced,
        FleetConflict,
        FleetError,
        InputError,
        KeptInSpool,
        LakeConflict,
        LakeDamaged,
        LakeError,
        LeaseLost,
        LocalClusterError,
        MirrorError,
        NetworkError,
        NoBrokerReachable,
        NotALake,
        NotDelivered,
        OffsetsLost,
        OttlaError,
        RecordTooLarge,
        RequestTimedOut,
        SecurityMismatch,
        SpoolError,
        SpoolFailed,
        SpoolFull,
        SpoolInUse,
        StoreIncompatible,
        StoreUnavailable,
        StreamFailed,
        TransactionFailed,
        UnsupportedFormat,
        UsedAfterFork,
        WireError,
    )
    from ottla.events import (
        Events,
    )
    from ottla.fetch.bounds import (
        CommittedBy,
    )
    from ottla.fetch.options import (
        Fetching,
        OnLost,
    )
    from ottla.fetch.profile import (
        PartitionProfile,
    )
    from ottla.fetch.reader import (
        RawBatch,
        Reader,
        ReadFailure,
    )
    from ottla.model import (
        Fingerprint,
        GroupMember,
        Isolation,
        OffsetRange,
        Receipt,
        Record,
        TopicPartition,
    )
    from ottla.net.cluster import (
        Cluster,
    )
    from ottla.net.discovery import (
        OnUnknownTopic,
    )
    from ottla.produce.coordinator import (
        PreparedTransaction,
    )
    from ottla.produce.delivery import (
        BulkDelivery,
        Decided,
        Delivery,
        Sent,
        SentMany,
    )
    from ottla.produce.failures import (
        FailedBatch,
    )
    from ottla.produce.options import (
        Batching,
        Buffering,
        Oversize,
        Spool,
        TopicOptions,
        WhenFull,
    )
    from ottla.produce.partition import (
        PartitionAnswer,
        PartitionProducer,
    )
    from ottla.produce.producer import (
        Producer,
    )
    from ottla.produce.route import (
        ByColumn,
        Random,
        RoundRobin,
        Sticky,
    )
    from ottla.produce.transaction import (
        Transaction,
        end_transaction,
    )
    from ottla.tally.settings import (
        Audit,
    )

__version__ = VERSION

_HOMES = {
    "Admin": "ottla.admin.admin",
    "ArchiveIncomplete": "ottla.errors",
    "Audit": "ottla.tally.settings",
    "AuthenticationFailed": "ottla.errors",
    "Batching": "ottla.produce.options",
    "BrokerError": "ottla.errors",
    "BufferFull": "ottla.errors",
    "Buffering": "ottla.produce.options",
    "BulkDelivery": "ottla.produce.delivery",
    "ByColumn": "ottla.produce.route",
    "Charter": "ottla.engines.fleet.units",
    "Cluster": "ottla.net.cluster",
    "CommitFailed": "ottla.errors",
    "Committed": "ottla.admin.committed",
    "CommittedBy": "ottla.fetch.bounds",
    "ConfigError": "ottla.errors",
    "ConnectFailed": "ottla.errors",
    "ConnectionLost": "ottla.errors",
    "Consumer": "ottla.consume.consumer",
    "CorruptBatch": "ottla.errors",
    "DeadlineExceeded": "ottla.errors",
    "Decided": "ottla.produce.delivery",
    "Delivery": "ottla.produce.delivery",
    "EngineFailed": "ottla.errors",
    "Events": "ottla.events.hub",
    "FailedBatch": "ottla.produce.failures",
    "Fenced": "ottla.errors",
    "Fetching": "ottla.fetch.options",
    "Fingerprint": "ottla.model",
    "Fleet": "ottla.engines.fleet.fleet",
    "FleetConflict": "ottla.errors",
    "FleetError": "ottla.errors",
    "GroupMember": "ottla.model",
    "GroupOptions": "ottla.consume.options",
    "InputError": "ottla.errors",
    "Isolation": "ottla.model",
    "KeptInSpool": "ottla.errors",
    "LakeConflict": "ottla.errors",
    "LakeDamaged": "ottla.errors",
    "LakeError": "ottla.errors",
    "LeaseLost": "ottla.errors",
    "Listener": "ottla.consume.listener",
    "LocalClusterError": "ottla.errors",
    "MirrorError": "ottla.errors",
    "NetworkError": "ottla.errors",
    "NewTopic": "ottla.admin.topics",
    "NoBrokerReachable": "ottla.errors",
    "NotALake": "ottla.errors",
    "NotDelivered": "ottla.errors",
    "OAuthBearer": "ottla.config",
    "OffsetRange": "ottla.model",
    "OffsetSpec": "ottla.admin.offsets",
    "OffsetsLost": "ottla.errors",
    "OnLost": "ottla.fetch.options",
    "OnUnknownTopic": "ottla.net.discovery",
    "OttlaError": "ottla.errors",
    "Oversize": "ottla.produce.options",
    "PartitionAnswer": "ottla.produce.partition",
    "PartitionProducer": "ottla.produce.partition",
    "PartitionProfile": "ottla.fetch.profile",
    "Plain": "ottla.config",
    "PreparedTransaction": "ottla.produce.coordinator",
    "Producer": "ottla.produce.producer",
    "Protocol": "ottla.consume.options",
    "Random": "ottla.produce.route",
    "RawBatch": "ottla.fetch.reader",
    "ReadFailure": "ottla.fetch.reader",
    "Reader": "ottla.fetch.reader",
    "Receipt": "ottla.model",
    "Record": "ottla.model",
    "RecordTooLarge": "ottla.errors",
    "RequestTimedOut": "ottla.errors",
    "Retry": "ottla.config",
    "RoundRobin": "ottla.produce.route",
    "Scram": "ottla.config",
    "Security": "ottla.config",
    "SecurityMismatch": "ottla.errors",
    "Sent": "ottla.produce.delivery",
    "SentMany": "ottla.produce.delivery",
    "Spool": "ottla.produce.options",
    "SpoolError": "ottla.errors",
    "SpoolFailed": "ottla.errors",
    "SpoolFull": "ottla.errors",
    "SpoolInUse": "ottla.errors",
    "Sticky": "ottla.produce.route",
    "StoreIncompatible": "ottla.errors",
    "StoreUnavailable": "ottla.errors",
    "StreamFailed": "ottla.errors",
    "Timeouts": "ottla.config",
    "Tls": "ottla.config",
    "TopicDescription": "ottla.admin.topics",
    "TopicOptions": "ottla.produce.options",
    "TopicPartition": "ottla.model",
    "Transaction": "ottla.produce.transaction",
    "TransactionFailed": "ottla.errors",
    "Unit": "ottla.engines.fleet.unit",
    "Units": "ottla.engines.fleet.planning",
    "UnsupportedFormat": "ottla.errors",
    "UsedAfterFork": "ottla.errors",
    "WhenFull": "ottla.produce.options",
    "WireError": "ottla.errors",
    "end_transaction": "ottla.produce.transaction",
}

__all__ = [
    "Admin",
    "ArchiveIncomplete",
    "Audit",
    "AuthenticationFailed",
    "Batching",
    "BrokerError",
    "BufferFull",
    "Buffering",
    "BulkDelivery",
    "ByColumn",
    "Charter",
    "Cluster",
    "CommitFailed",
    "Committed",
    "CommittedBy",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "Consumer",
    "CorruptBatch",
    "DeadlineExceeded",
    "Decided",
    "Delivery",
    "EngineFailed",
    "Events",
    "FailedBatch",
    "Fenced",
    "Fetching",
    "Fingerprint",
    "Fleet",
    "FleetConflict",
    "FleetError",
    "GroupMember",
    "GroupOptions",
    "InputError",
    "Isolation",
    "KeptInSpool",
    "LakeConflict",
    "LakeDamaged",
    "LakeError",
    "LeaseLost",
    "Listener",
    "LocalClusterError",
    "MirrorError",
    "NetworkError",
    "NewTopic",
    "NoBrokerReachable",
    "NotALake",
    "NotDelivered",
    "OAuthBearer",
    "OffsetRange",
    "OffsetSpec",
    "OffsetsLost",
    "OnLost",
    "OnUnknownTopic",
    "OttlaError",
    "Oversize",
    "PartitionAnswer",
    "PartitionProducer",
    "PartitionProfile",
    "Plain",
    "PreparedTransaction",
    "Producer",
    "Protocol",
    "Random",
    "RawBatch",
    "ReadFailure",
    "Reader",
    "Receipt",
    "Record",
    "RecordTooLarge",
    "RequestTimedOut",
    "Retry",
    "RoundRobin",
    "Scram",
    "Security",
    "SecurityMismatch",
    "Sent",
    "SentMany",
    "Spool",
    "SpoolError",
    "SpoolFailed",
    "SpoolFull",
    "SpoolInUse",
    "Sticky",
    "StoreIncompatible",
    "StoreUnavailable",
    "StreamFailed",
    "Timeouts",
    "Tls",
    "TopicDescription",
    "TopicOptions",
    "TopicPartition",
    "Transaction",
    "TransactionFailed",
    "Unit",
    "Units",
    "UnsupportedFormat",
    "UsedAfterFork",
    "WhenFull",
    "WireError",
    "end_transaction",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept any misspelled name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
