"""Groups as values: lags, and what hostile or foreign members write for each other."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from ottla.admin import Committed, DescribedMember, PartitionLag
from ottla.admin.groups import in_use, read_describe_classic, read_list
from ottla.errors import BrokerError, ErrorCode
from ottla.model import TopicPartition

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("committed", "stop", "lag"),
    [
        (Committed(3), 10, 7),
        (Committed(10), 10, 0),
        (Committed(12), 10, -2),
        (None, 10, None),
        (Committed(3), None, None),
    ],
)
def test_lag_is_what_is_between_the_commit_and_the_end(
    committed: Committed | None, stop: int | None, lag: int | None
) -> None:
    assert PartitionLag(T0, committed, 0, stop).lag == lag


def _classic(assignment: bytes, *, state: str = "Stable", protocol_type: str = "consumer") -> SimpleNamespace:
    member = SimpleNamespace(
        member_id="m-1",
        group_instance_id=None,
        client_id="app",
        client_host="/10.0.0.1",
        member_metadata=b"",
        member_assignment=assignment,
    )
    group = SimpleNamespace(
        error_code=ErrorCode.none,
        group_id="g",
        group_state=state,
        protocol_type=protocol_type,
        protocol_data="range",
        members=[member],
    )
    return SimpleNamespace(groups=[group])


def _assignment(version: int, *extra: bytes) -> bytes:
    topics = struct.pack(">ih", 1, 1) + b"t" + struct.pack(">iii", 2, 1, 0)
    return struct.pack(">h", version) + topics + struct.pack(">i", -1) + b"".join(extra)


@pytest.mark.parametrize("assignment", [_assignment(0), _assignment(3), _assignment(9, b"what we do not know")])
def test_assignments_of_all_versions_are_understood(assignment: bytes) -> None:
    [member] = read_describe_classic(_classic(assignment)).members
    assert member.assigned == (T0, TopicPartition("t", 1))


@pytest.mark.parametrize("assignment", [b"", b"\x00", _assignment(-3), _assignment(0)[:9], b"\x00\x00\x7f\xff\xff\xff"])
def test_a_hostile_assignment_is_none(assignment: bytes) -> None:
    [member] = read_describe_classic(_classic(assignment)).members
    assert member.assigned == ()


def test_members_that_are_no_consumers_are_not_read_as_if_they_were() -> None:
    group = read_describe_classic(_classic(_assignment(0), protocol_type="connect"))
    assert group.members[0].assigned == ()
    assert group.assignor == ""


def test_a_dead_group_does_not_exist() -> None:
    with pytest.raises(BrokerError, match="describing group g: GROUP_ID_NOT_FOUND"):
        read_describe_classic(_classic(b"", state="Dead"))


def test_a_group_in_use_names_some_members_and_counts_the_others() -> None:
    members = [DescribedMember(f"m-{number}", "app", "/10.0.0.1") for number in range(7)]
    error = in_use("g", members)
    assert error.code is ErrorCode.non_empty_group
    assert "7 members: app on 10.0.0.1 (m-0), " in str(error)
    assert "(m-4) and 2 more" in str(error)
    static = in_use("g", [DescribedMember("m", "", "?", "i")])
    assert "1 member: a client without name on ? (m, instance i)" in str(static)


def test_old_brokers_do_not_tell_state_and_type() -> None:
    row = SimpleNamespace(group_id="g", protocol_type="consumer")
    [listed] = read_list(SimpleNamespace(error_code=ErrorCode.none, groups=[row]), 4)
    assert (listed.state, listed.type, listed.coordinator) == ("", "classic", 4)
