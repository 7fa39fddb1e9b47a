"""A row for each error code of a broker: whether to try again, whether to look up leaders, what a person should do.

Apart from `ottla.errors`, which every module needs: the codes are kio's, and to import kio takes a while.
"""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from ottla.advice import Advice

__all__ = ["ErrorCode", "ErrorRow", "error_row"]


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """What a broker error code means for a client."""

    code: ErrorCode
    retriable: bool
    """Trying again later may succeed without anybody changing anything."""
    refresh: bool
    """The metadata (leader or coordinator) that led to this answer is stale."""
    advice: str
    """What a person should do, or empty."""

    @property
    def name(self) -> str:
        """Kafka's name of the code, for example NOT_LEADER_OR_FOLLOWER."""
        return self.code.name.upper()


# Codes after which the leader, coordinator or controller must be looked up again (Kafka's InvalidMetadataException
# and the coordinator's own "ask somebody else").
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
        "an election is going on, or no in-sync replica is alive: check that the brokers are up"
    ),
    ErrorCode.not_leader_or_follower: (
        "leadership moved to another broker; clients look the leader up and go on by themselves. If it keeps coming,"
        " brokers are being restarted or lose their controller: look at their logs"
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
        "fewer replicas are in sync than min.insync.replicas asks for: bring brokers back, or lower it knowingly"
    ),
    ErrorCode.not_enough_replicas_after_append: (
        "the records are in the leader's log but too few replicas have them: bring brokers back; the send is repeated"
    ),
    ErrorCode.invalid_replication_factor: (
        "the replication factor must be between 1 and the number of brokers that are up"
    ),
    ErrorCode.topic_already_exists: "choose another name, or use the topic that is there",
    ErrorCode.invalid_topic_exception: (
        "a topic name has 1 to 249 of the characters a-z A-Z 0-9 . _ -, and is not . or .."
    ),
    ErrorCode.invalid_partitions: "the number of partitions must be at least 1 and can only grow",
    ErrorCode.invalid_config: "a topic setting has an unknown name or a value outside its range",
    ErrorCode.policy_violation: "a policy on the cluster forbids this; ask its operators",
    ErrorCode.topic_authorization_failed: "the user has no right on this topic: ask for an ACL",
    ErrorCode.group_authorization_failed: "the user has no right on this group: ask for an ACL",
    ErrorCode.cluster_authorization_failed: "the user has no right for this on the cluster: ask for an ACL",
    ErrorCode.transactional_id_authorization_failed: "the user has no right on this transactional id: ask for an ACL",
    ErrorCode.sasl_authentication_failed: "user, password or token are wrong for this cluster",
    ErrorCode.unsupported_sasl_mechanism: "choose one of the mechanisms that the broker names",
    ErrorCode.unsupported_version: "the broker is too old for this request: Ottla needs Kafka 3.0 or newer",
    ErrorCode.unsupported_for_message_format: (
        "the topic still uses message format 0 or 1: rewrite it with a 3.x broker first"
    ),
    ErrorCode.unsupported_compression_type: (
        "the broker or topic does not accept this codec: choose another compression"
    ),
    ErrorCode.out_of_order_sequence_number: (
        "batches of this producer id arrived with a gap: an earlier batch was lost or refused"
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
        "the group moved on without this member: its partitions are, or soon will be, somebody else's, who reads from"
        " the last commit. Go on with the partitions it is given next. It happens to members that process for longer"
        " than max_poll_interval, or whose heartbeats do not come through; without a member, the group is in use",
    ),
    ErrorCode.fenced_instance_id: (
        "another consumer joined with the same static instance id and took over: give each consumer its own, or end"
        " the other one"
    ),
    ErrorCode.group_id_not_found: (
        "no group has this name on this cluster: check its spelling and the bootstrap address; groups without members"
        " vanish when their offsets expire"
    ),
    ErrorCode.non_empty_group: "the group has members: stop them first",
    ErrorCode.group_subscribed_to_topic: (
        "members of the group read this topic: stop them, or let them subscribe to others, first"
    ),
    ErrorCode.unreleased_instance_id: (
        "another live member has this instance_id: give each member one of its own, or end the other one first"
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
        "server_assignor must be one of group.consumer.assignors of the brokers; usual are uniform and range"
    ),
    ErrorCode.topic_deletion_disabled: "the brokers run with delete.topic.enable=false",
    ErrorCode.request_timed_out: (
        "the broker did not get it done in time: it is overloaded, or replicas or the controller are away"
    ),
}

_ROWS = {int(code): ErrorRow(code, code.retriable, code in _REFRESH, _ADVICE.get(code, "")) for code in ErrorCode}


def error_row(code: int) -> ErrorRow:
    """The row of a broker error code; a code newer than this table counts as an unknown server error."""
    return _ROWS.get(code, _ROWS[int(ErrorCode.unknown_server_error)])
