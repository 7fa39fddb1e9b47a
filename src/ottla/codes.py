"""A row for each error code of a broker: whether to retry, whether to look up leaders again, what a person should do.

Separate from `ottla.errors`, which every module imports and few need this for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from ottla.advice import Advice

__all__ = ["ErrorCode", "ErrorRow", "error_row"]


class ErrorCode(IntEnum):
    """Every error code of the protocol, with Kafka's names."""

    unknown_server_error = -1
    none = 0
    offset_out_of_range = 1
    corrupt_message = 2
    unknown_topic_or_partition = 3
    invalid_fetch_size = 4
    leader_not_available = 5
    not_leader_or_follower = 6
    request_timed_out = 7
    broker_not_available = 8
    replica_not_available = 9
    message_too_large = 10
    stale_controller_epoch = 11
    offset_metadata_too_large = 12
    network_exception = 13
    coordinator_load_in_progress = 14
    coordinator_not_available = 15
    not_coordinator = 16
    invalid_topic_exception = 17
    record_list_too_large = 18
    not_enough_replicas = 19
    not_enough_replicas_after_append = 20
    invalid_required_acks = 21
    illegal_generation = 22
    inconsistent_group_protocol = 23
    invalid_group_id = 24
    unknown_member_id = 25
    invalid_session_timeout = 26
    rebalance_in_progress = 27
    invalid_commit_offset_size = 28
    topic_authorization_failed = 29
    group_authorization_failed = 30
    cluster_authorization_failed = 31
    invalid_timestamp = 32
    unsupported_sasl_mechanism = 33
    illegal_sasl_state = 34
    unsupported_version = 35
    topic_already_exists = 36
    invalid_partitions = 37
    invalid_replication_factor = 38
    invalid_replica_assignment = 39
    invalid_config = 40
    not_controller = 41
    invalid_request = 42
    unsupported_for_message_format = 43
    policy_violation = 44
    out_of_order_sequence_number = 45
    duplicate_sequence_number = 46
    invalid_producer_epoch = 47
    invalid_txn_state = 48
    invalid_producer_id_mapping = 49
    invalid_transaction_timeout = 50
    concurrent_transactions = 51
    transaction_coordinator_fenced = 52
    transactional_id_authorization_failed = 53
    security_disabled = 54
    operation_not_attempted = 55
    kafka_storage_error = 56
    log_dir_not_found = 57
    sasl_authentication_failed = 58
    unknown_producer_id = 59
    reassignment_in_progress = 60
    delegation_token_auth_disabled = 61
    delegation_token_not_found = 62
    delegation_token_owner_mismatch = 63
    delegation_token_request_not_allowed = 64
    delegation_token_authorization_failed = 65
    delegation_token_expired = 66
    invalid_principal_type = 67
    non_empty_group = 68
    group_id_not_found = 69
    fetch_session_id_not_found = 70
    invalid_fetch_session_epoch = 71
    listener_not_found = 72
    topic_deletion_disabled = 73
    fenced_leader_epoch = 74
    unknown_leader_epoch = 75
    unsupported_compression_type = 76
    stale_broker_epoch = 77
    offset_not_available = 78
    member_id_required = 79
    preferred_leader_not_available = 80
    group_max_size_reached = 81
    fenced_instance_id = 82
    eligible_leaders_not_available = 83
    election_not_needed = 84
    no_reassignment_in_progress = 85
    group_subscribed_to_topic = 86
    invalid_record = 87
    unstable_offset_commit = 88
    throttling_quota_exceeded = 89
    producer_fenced = 90
    resource_not_found = 91
    duplicate_resource = 92
    unacceptable_credential = 93
    inconsistent_voter_set = 94
    invalid_update_version = 95
    feature_update_failed = 96
    principal_deserialization_failure = 97
    snapshot_not_found = 98
    position_out_of_range = 99
    unknown_topic_id = 100
    duplicate_broker_registration = 101
    broker_id_not_registered = 102
    inconsistent_topic_id = 103
    inconsistent_cluster_id = 104
    transactional_id_not_found = 105
    fetch_session_topic_id_error = 106
    ineligible_replica = 107
    new_leader_elected = 108
    offset_moved_to_tiered_storage = 109
    fenced_member_epoch = 110
    unreleased_instance_id = 111
    unsupported_assignor = 112
    stale_member_epoch = 113
    mismatched_endpoint_type = 114
    unsupported_endpoint_type = 115
    unknown_controller_id = 116
    unknown_subscription_id = 117
    telemetry_too_large = 118
    invalid_registration = 119
    transaction_abortable = 120
    invalid_record_state = 121
    share_session_not_found = 122
    invalid_share_session_epoch = 123
    fenced_state_epoch = 124
    invalid_voter_key = 125
    duplicate_voter = 126
    voter_not_found = 127
    invalid_regular_expression = 128
    rebootstrap_required = 129
    streams_invalid_topology = 130
    streams_invalid_topology_epoch = 131
    streams_topology_fenced = 132
    share_session_limit_reached = 133

    @property
    def retriable(self) -> bool:
        """Whether Kafka documents that a retry may succeed."""
        return self in _RETRIABLE


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """What a broker error code means for a client."""

    code: ErrorCode
    retriable: bool
    """Whether a later retry may succeed without any other change."""
    refresh: bool
    """Whether the metadata (leader or coordinator) behind this response is stale."""
    advice: str
    """What a person should do, or ""."""

    @property
    def name(self) -> str:
        """Kafka's name of the code, for example NOT_LEADER_OR_FOLLOWER."""
        return self.code.name.upper()


# Kafka's RetriableException.
_RETRIABLE = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.replica_not_available,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_controller,
        ErrorCode.concurrent_transactions,
        ErrorCode.kafka_storage_error,
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.listener_not_found,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.eligible_leaders_not_available,
        ErrorCode.election_not_needed,
        ErrorCode.unstable_offset_commit,
        ErrorCode.throttling_quota_exceeded,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.fetch_session_topic_id_error,
        ErrorCode.share_session_not_found,
        ErrorCode.invalid_share_session_epoch,
        ErrorCode.share_session_limit_reached,
    }
)

# Codes after which the leader, coordinator or controller must be looked up again: Kafka's InvalidMetadataException, and
# the coordinator's own errors.
_REFRESH = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.network_exception,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_controller,
        ErrorCode.kafka_storage_error,
        ErrorCode.listener_not_found,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    }
)

_ADVICE = {
    ErrorCode.offset_out_of_range: (
        "the offset is older than the log's start or beyond its end. Old offsets: retention deleted the records before"
        " they were read; add readers or raise retention.ms / retention.bytes of the topic. Beyond the end: the topic"
        " was deleted and created again, or offsets of another cluster are in use. Start again at earliest or latest."
    ),
    ErrorCode.corrupt_message: (
        "the broker found a wrong checksum or an invalid batch, or a record without key for a compacted topic"
    ),
    ErrorCode.unknown_topic_or_partition: (
        "the topic or partition does not exist on this cluster, or not yet: check its spelling and the bootstrap"
        " address, or create it"
    ),
    ErrorCode.leader_not_available: (
        "an election is in progress, or no in-sync replica is alive: check that the brokers are up"
    ),
    ErrorCode.not_leader_or_follower: (
        "leadership moved to another broker; clients look up the leader and continue. If it keeps happening, brokers"
        " are being restarted or lose their controller: check their logs"
    ),
    ErrorCode.message_too_large: (
        "the batch is larger than the broker accepts: send smaller batches or compress them, or raise"
        " max.message.bytes of the topic (message.max.bytes of the brokers) and let readers fetch at least that much"
    ),
    ErrorCode.record_list_too_large: (
        "the batch is larger than a log segment: send smaller batches or raise segment.bytes"
    ),
    ErrorCode.invalid_fetch_size: f"the broker does not accept the size of this request: {Advice.FETCH_SIZE}",
    ErrorCode.not_enough_replicas: (
        "fewer replicas are in sync than min.insync.replicas requires: bring brokers back, or lower it deliberately"
    ),
    ErrorCode.not_enough_replicas_after_append: (
        "the records are in the leader's log but too few replicas have them: bring brokers back; clients send again"
    ),
    ErrorCode.invalid_replication_factor: (
        "the replication factor must be between 1 and the number of brokers that are up"
    ),
    ErrorCode.topic_already_exists: "choose another name, or use the existing topic",
    ErrorCode.invalid_topic_exception: (
        "a topic name has 1 to 249 of the characters a-z A-Z 0-9 . _ -, and is not . or ..; topics that Kafka keeps for"
        " itself, such as __consumer_offsets, take no records of others"
    ),
    ErrorCode.invalid_partitions: "the number of partitions must be at least 1 and can only grow",
    ErrorCode.invalid_config: "a topic setting has an unknown name or a value outside its range",
    ErrorCode.policy_violation: "a policy on the cluster forbids this; ask its operators",
    ErrorCode.topic_authorization_failed: "the user is not authorized for this topic: ask for an ACL",
    ErrorCode.group_authorization_failed: "the user is not authorized for this group: ask for an ACL",
    ErrorCode.cluster_authorization_failed: "the user is not authorized for this on the cluster: ask for an ACL",
    ErrorCode.transactional_id_authorization_failed: (
        "the user is not authorized for this transactional id: ask for an ACL"
    ),
    ErrorCode.sasl_authentication_failed: "user name, password or token are wrong for this cluster",
    ErrorCode.unsupported_sasl_mechanism: "choose one of the mechanisms that the broker names",
    ErrorCode.unsupported_version: "the broker is too old for this request: Ottla needs Kafka 3.0 or newer",
    ErrorCode.unsupported_for_message_format: (
        "the topic still uses message format 0 or 1: rewrite it with a 3.x broker first"
    ),
    ErrorCode.unsupported_compression_type: (
        "the broker or topic does not accept this codec: choose another compression"
    ),
    ErrorCode.out_of_order_sequence_number: (
        "batches of this producer id arrived with a gap: an earlier batch was lost or rejected"
    ),
    ErrorCode.invalid_producer_epoch: "a newer producer with the same transactional id took over",
    ErrorCode.producer_fenced: "a newer producer with the same transactional id took over: this one must stop",
    **dict.fromkeys(
        (
            ErrorCode.illegal_generation,
            ErrorCode.unknown_member_id,
            ErrorCode.stale_member_epoch,
            ErrorCode.fenced_member_epoch,
            ErrorCode.rebalance_in_progress,
        ),
        "the group moved on without this member: its partitions go to other members, which read from the last commit."
        " Continue with the partitions it is assigned next. This happens to members that process for longer than"
        " max_poll_interval, or whose heartbeats do not arrive; for a client that is not a member, the group is in use",
    ),
    ErrorCode.fenced_instance_id: (
        "another consumer joined with the same static instance id and took over: give each consumer its own, or stop"
        " the other one"
    ),
    ErrorCode.group_id_not_found: (
        "no group has this name on this cluster: check its spelling and the bootstrap address; groups without members"
        " vanish when their offsets expire"
    ),
    ErrorCode.non_empty_group: "the group has members: stop them first",
    ErrorCode.group_subscribed_to_topic: (
        "members of the group read this topic: stop them first, or let them subscribe to other topics"
    ),
    ErrorCode.unreleased_instance_id: (
        "another live member has this instance_id: give each member its own, or stop the other one first"
    ),
    ErrorCode.group_max_size_reached: "the group has as many members as the brokers allow (group.max.size)",
    ErrorCode.inconsistent_group_protocol: (
        "the members of a classic group must have an assignor in common, and all be consumers: set assignors to what"
        " the others offer, or choose another group"
    ),
    ErrorCode.invalid_session_timeout: (
        "session_timeout must lie between group.min.session.timeout.ms and group.max.session.timeout.ms of the brokers"
    ),
    ErrorCode.unsupported_assignor: (
        "server_assignor must be one of group.consumer.assignors of the brokers, usually uniform or range"
    ),
    ErrorCode.topic_deletion_disabled: "the brokers run with delete.topic.enable=false",
    ErrorCode.request_timed_out: (
        "the broker did not finish in time: it is overloaded, or replicas or the controller are down"
    ),
}


def error_row(code: int) -> ErrorRow:
    """Return the row of a broker error code. A code newer than this table counts as an unknown server error."""
    rows = _rows()
    return rows.get(code, rows[int(ErrorCode.unknown_server_error)])


@cache
def _rows() -> dict[int, ErrorRow]:
    return {int(code): ErrorRow(code, code.retriable, code in _REFRESH, _ADVICE.get(code, "")) for code in ErrorCode}
