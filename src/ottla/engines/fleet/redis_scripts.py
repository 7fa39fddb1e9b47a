"""The steps of `Rules` as Lua scripts, each of which Redis runs atomically.

This module only defines text. The scripts use no clock and no expiry, so a server whose clock jumps changes nothing.
Every script receives all keys, so that a Redis Cluster can route it.

    meta      hash   charter, ordered, max_attempts, number, run (of the server that gave it out), planner_number,
                     planner_holder, planner_beat, counts
    planned   hash   label -> offset                      turns     hash  label -> number of the last lease, padded
    ready     zset   "TURN label"                         busy      hash  label -> number of units out or failed
    waiting   zset   unit                                 out       hash  unit -> "number beat attempt holder"
    tries     hash   unit -> attempts so far              failures  hash  unit -> "attempts JSON"
    nodes     hash   name -> "beat JSON"                  topics    hash  name -> id
    notes     hash   key -> value

A unit is "topic PARTITION START STOP". A lane is a partition as "topic PARTITION". Both are padded with zeros so that
they sort as text: Lua numbers and Redis scores are exact only up to 2**53, but offsets go up to 2**63. All scores are
0. The label of a lane is "topic/partition".
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from ottla.engines.fleet.units import LEAP

KEYS = (
    *("meta", "planned", "turns", "ready", "waiting", "busy", "out", "tries", "failures", "nodes", "topics", "notes"),
)
"""The keys that every script receives, in this order."""

NOT_FOUNDED = b"not founded"
"""What a script returns if the group does not exist."""


class Script(NamedTuple):
    """A script, and the SHA-1 by which a server knows it once it has loaded it."""

    text: str
    sha: str


_PRELUDE = f"local {', '.join(KEYS)} = unpack(KEYS)\nlocal call, leap_by = redis.call, {LEAP}\n"


_PARTS = """
local function count(name, by) call('HINCRBY', meta, name, by or 1) end

-- A server at maxmemory refuses a script if its first write needs memory, even if the script frees more afterwards. A
-- script that begins with a deletion, even of nothing, may run. So units can still be worked off on a full server.
local function although_full() call('HDEL', out, '') end

local function refuse() although_full() count('refused') return 0 end

-- A server that was restarted, or a replica that took over, may have forgotten the last lease numbers. Both have
-- another run id. If the user may not call INFO, assume the same server.
local function leap()
  local info = redis.pcall('INFO', 'server')
  local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)')
  if not run or call('HGET', meta, 'run') == run then return end
  if call('HSET', meta, 'run', run) == 0 then call('HINCRBY', meta, 'number', leap_by) end
end

-- Read the number back as text: what HINCRBY returns is a Lua number, which is not exact above 2**53.
local function next_number()
  leap()
  call('HINCRBY', meta, 'number', 1)
  return call('HGET', meta, 'number')
end

local function is_planner(number, holder)
  local current = call('HMGET', meta, 'planner_number', 'planner_holder')
  return current[1] == number and current[2] == holder
end

-- The first waiting unit of a lane. '!' follows the space, so the range has exactly the names that begin with the lane.
local function first(lane)
  return call('ZRANGEBYLEX', waiting, '[' .. lane .. ' ', '(' .. lane .. '!', 'LIMIT', 0, 1)[1]
end

-- The member of `ready` for a lane: lanes sort by the number of their last lease.
local function in_line(label) return (call('HGET', turns, label) or string.rep('0', 19)) .. ' ' .. label end

-- Count units that are out or failed. An ordered lane is not ready while it has any.
local function occupy(label, by)
  if call('HINCRBY', busy, label, by) == 0 then call('HDEL', busy, label) end
end

-- Update whether a lane is ready, after its units have changed.
local function settle(lane, label)
  local held_up = call('HGET', meta, 'ordered') == '1' and call('HEXISTS', busy, label) == 1
  if first(lane) and not held_up then
    call('ZADD', ready, 0, in_line(label))
  else
    call('ZREM', ready, in_line(label))
  end
end

-- The lane of a unit, and the label of the lane.
local function lane_of(unit)
  local topic, partition = string.match(unit, '^(.*) (%d+) %d+ %d+$')
  return topic .. ' ' .. partition, topic .. '/' .. tonumber(partition)
end

-- The beat and the attempt of a unit, if this lease holds it.
local function held(unit, number, holder)
  local entry = call('HGET', out, unit)
  if not entry then return nil end
  local current_number, beat, attempt, current_holder = string.match(entry, '^(%d+) (%d+) (%d+) (.*)$')
  if current_number == number and current_holder == holder then return beat, attempt end
end

-- End an attempt that did not succeed: retry the unit, or move it to the error list.
local function lose(unit, attempt, failure)
  local lane, label = lane_of(unit)
  call('HDEL', out, unit)
  occupy(label, -1)
  if tonumber(attempt) < tonumber(call('HGET', meta, 'max_attempts')) then
    call('ZADD', waiting, 0, unit)
  else
    call('HDEL', tries, unit)
    count('given_up')
    if call('HSET', failures, unit, attempt .. ' ' .. failure) == 1 then occupy(label, 1) end
  end
  settle(lane, label)
end
"""


def _script(text: str) -> Script:
    whole = _PRELUDE + text
    # Redis identifies scripts by their SHA-1; it protects nothing.
    return Script(whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


def _step(text: str) -> Script:
    """A script that adds something to a group. It returns `NOT_FOUNDED` if the group does not exist."""
    return _in_group(f"'{NOT_FOUNDED.decode()}'", text)


def _word(text: str) -> Script:
    """A script that returns 1 or 0; 0 if the group does not exist."""
    return _in_group("0", text)


def _in_group(otherwise: str, text: str) -> Script:
    return _script(f"if call('HEXISTS', meta, 'charter') == 0 then return {otherwise} end\n{_PARTS}{text}")


# ARGV: charter, ordered, max_attempts. The first node wins; all get the charter that is stored.
FOUND = _script("""
if call('HSETNX', meta, 'charter', ARGV[1]) == 1 then
  call('HSET', meta, 'ordered', ARGV[2], 'max_attempts', ARGV[3])
end
return call('HGET', meta, 'charter')
""")

# ARGV: name and id of each topic. An empty id keeps the one that is stored.
ADD_TOPICS = _step("""
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] ~= '' then
    call('HSET', topics, ARGV[i], ARGV[i + 1])
  else
    call('HSETNX', topics, ARGV[i], '')
  end
end
""")

REMOVE_TOPICS = _word("for _, name in ipairs(ARGV) do call('HDEL', topics, name) end")

# ARGV: holder, and of the expired lease: number (or empty), holder, beat
LEAD = _step("""
local lease = call('HMGET', meta, 'planner_number', 'planner_holder', 'planner_beat')
if lease[1] and not (lease[1] == ARGV[2] and lease[2] == ARGV[3] and lease[3] == ARGV[4]) then return false end
local number = next_number()
call('HSET', meta, 'planner_number', number, 'planner_holder', ARGV[1], 'planner_beat', 0)
return number
""")

# ARGV: number, holder
STAY = _word("""
if not is_planner(ARGV[1], ARGV[2]) then return refuse() end
call('HINCRBY', meta, 'planner_beat', 1)
return 1
""")

# ARGV: number, holder
RESIGN = _word("""
if not is_planner(ARGV[1], ARGV[2]) then return refuse() end
call('HDEL', meta, 'planner_number', 'planner_holder', 'planner_beat')
return 1
""")

# ARGV: number, holder, then for each move: label, lane, before (or empty), to, number of units, "START STOP" of each
PLAN = _word("""
if not is_planner(ARGV[1], ARGV[2]) then return refuse() end
local i = 3
while i <= #ARGV do
  if (call('HGET', planned, ARGV[i]) or '') ~= ARGV[i + 2] then return refuse() end
  i = i + 5 + tonumber(ARGV[i + 4])
end
i = 3
while i <= #ARGV do
  local label, lane, units = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 4])
  call('HSET', planned, label, ARGV[i + 3])
  for j = i + 5, i + 4 + units do call('ZADD', waiting, 0, lane .. ' ' .. ARGV[j]) end
  settle(lane, label)
  i = i + 5 + units
end
return 1
""")

# Compares as text, since Lua numbers are not exact.
RAISE_NUMBER = _step("""
local current, least = call('HGET', meta, 'number') or '0', ARGV[1]
if #current < #least or (#current == #least and current < least) then call('HSET', meta, 'number', least) end
""")

# ARGV: holder, most
TAKE = _in_group(
    "{}",
    """
local grants = {}
although_full()
for _ = 1, tonumber(ARGV[2]) do
  local head = call('ZRANGE', ready, 0, 0)[1]
  if not head then break end
  local label = string.sub(head, 21)
  local topic, partition = string.match(label, '^(.*)/(%d+)$')
  local lane = topic .. ' ' .. string.rep('0', 10 - #partition) .. partition
  local unit = first(lane)
  local number = next_number()
  call('ZREM', ready, head)
  call('ZREM', waiting, unit)
  call('HSET', turns, label, string.rep('0', 19 - #number) .. number)
  local attempt = call('HINCRBY', tries, unit, 1)
  if call('HSET', out, unit, number .. ' 0 ' .. attempt .. ' ' .. ARGV[1]) == 1 then occupy(label, 1) end
  settle(lane, label)
  grants[#grants + 1] = {unit, number, attempt}
end
return grants
""",
)

# ARGV: unit, number, holder of each lease
RENEW = _script(
    _PARTS
    + """
local kept = {}
although_full()
for i = 1, #ARGV, 3 do
  local beat, attempt = held(ARGV[i], ARGV[i + 1], ARGV[i + 2])
  if beat then
    call('HSET', out, ARGV[i], ARGV[i + 1] .. ' ' .. (beat + 1) .. ' ' .. attempt .. ' ' .. ARGV[i + 2])
  end
  kept[#kept + 1] = beat and 1 or 0
end
return kept
"""
)

# ARGV: unit, number, holder, number of offsets done, the rest of the unit (or empty)
FINISH = _word("""
local unit, rest = ARGV[1], ARGV[5]
if not held(unit, ARGV[2], ARGV[3]) then return refuse() end
local lane, label = lane_of(unit)
local attempts = tonumber(call('HGET', tries, unit))
call('HDEL', out, unit)
call('HDEL', tries, unit)
occupy(label, -1)
if ARGV[4] ~= '0' then
  count('done')
  count('offsets', ARGV[4])
else
  count('given_back')
end
if rest ~= '' then
  if rest == unit and attempts > 1 then call('HSET', tries, unit, attempts - 1) end
  call('ZADD', waiting, 0, rest)
end
settle(lane, label)
return 1
""")

# ARGV: unit, number, holder, failure
FAIL = _word("""
local beat, attempt = held(ARGV[1], ARGV[2], ARGV[3])
if not beat then return refuse() end
although_full()
count('failed')
lose(ARGV[1], attempt, ARGV[4])
return 1
""")

# ARGV: unit, number, holder, beat, failure
RECLAIM = _word("""
local beat, attempt = held(ARGV[1], ARGV[2], ARGV[3])
if beat ~= ARGV[4] then return 0 end
although_full()
count('reclaimed')
lose(ARGV[1], attempt, ARGV[5])
return 1
""")

# ARGV: unit
RETRY = _word("""
if call('HDEL', failures, ARGV[1]) == 0 then return 0 end
local lane, label = lane_of(ARGV[1])
occupy(label, -1)
call('ZADD', waiting, 0, ARGV[1])
settle(lane, label)
return 1
""")

# ARGV: unit
DROP = _word("""
if call('HDEL', failures, ARGV[1]) == 0 then return 0 end
local lane, label = lane_of(ARGV[1])
occupy(label, -1)
settle(lane, label)
return 1
""")

# ARGV: label, lane, offset (or empty)
RESET = _step("""
local label, lane = ARGV[1], ARGV[2]
call('ZREM', ready, in_line(label))
call('ZREMRANGEBYLEX', waiting, '[' .. lane .. ' ', '(' .. lane .. '!')
for _, key in ipairs({out, tries, failures}) do
  for _, unit in ipairs(call('HKEYS', key)) do
    if lane_of(unit) == lane then call('HDEL', key, unit) end
  end
end
call('HDEL', busy, label)
if ARGV[3] ~= '' then
  call('HSET', planned, label, ARGV[3])
else
  call('HDEL', planned, label)
  call('HDEL', turns, label)
end
""")

# ARGV: name, report
HELLO = _step("""
local known = call('HGET', nodes, ARGV[1])
local beat = known and string.match(known, '^%d+') + 1 or 0
call('HSET', nodes, ARGV[1], beat .. ' ' .. ARGV[2])
""")

# ARGV: name, beat (or empty)
GOODBYE = _word("""
local known = call('HGET', nodes, ARGV[1])
if not known or (ARGV[2] ~= '' and string.match(known, '^%d+') ~= ARGV[2]) then return 0 end
return call('HDEL', nodes, ARGV[1])
""")

NOTE = _step("call('HSET', notes, ARGV[1], ARGV[2])")

UNNOTE = _step("call('HDEL', notes, ARGV[1])")

# Readers need no group: without one, every structure is empty.
PULSE = _script("""
return {call('HMGET', meta, 'planner_number', 'planner_holder', 'planner_beat'), call('HGETALL', out)}
""")

LOOK = _script("""
local lanes = {}
local offsets = call('HGETALL', planned)
for i = 1, #offsets, 2 do
  local topic, partition = string.match(offsets[i], '^(.*)/(%d+)$')
  local lane = topic .. ' ' .. string.rep('0', 10 - #partition) .. partition
  local from, to = '[' .. lane .. ' ', '(' .. lane .. '!'
  local waits = call('ZLEXCOUNT', waiting, from, to)
  lanes[#lanes + 1] = {
    topic, partition, offsets[i + 1], waits, call('ZRANGEBYLEX', waiting, from, to, 'LIMIT', 0, 1)[1] or ''
  }
end
return {
  call('HGETALL', meta), lanes, call('HGETALL', out), call('HKEYS', failures), call('HGETALL', nodes),
  call('HGETALL', topics)
}
""")
