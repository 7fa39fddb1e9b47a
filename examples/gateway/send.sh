#!/usr/bin/env bash
# Sends one message to the gateway's socket and forgets it.
#
#     send.sh /run/ottla/gateway.sock clicks 'a value'
#     send.sh 127.0.0.1:9091 clicks 'a value' 'a key'
#
# By TCP it needs bash alone; for the path of a unix datagram socket it needs socat.

set -eu
export LC_ALL=C # lengths are in bytes

fail() {
    echo "error: $1" >&2
    exit "$2"
}

if [ $# -lt 3 ] || [ $# -gt 4 ]; then
    echo "usage: $0 SOCKET|HOST:PORT TOPIC VALUE [KEY]" >&2
    exit 2
fi
place=$1 topic=$2 value=$3 key=${4:-}
[ -n "$topic" ] && [ ${#topic} -le 32767 ] || fail "the topic has ${#topic} bytes, expected 1 to 32767" 2

number() { # a number, big endian, in this many bytes, as escapes for printf
    local shift
    for ((shift = 8 * ($2 - 1); shift >= 0; shift -= 8)); do
        printf '\\x%02x' $((($1 >> shift) & 255))
    done
}

message() {
    local size=$((28 + ${#topic} + ${#key} + ${#value}))
    # size, AnyPartition, version 0, no flags
    printf "$(number $size 4)$(number 256 2)$(number 0 4)$(number ${#topic} 2)"
    printf '%s' "$topic"
    printf "$(number "$(date +%s%3N)" 8)$(number ${#key} 4)"
    printf '%s' "$key"
    printf "$(number ${#value} 4)"
    printf '%s' "$value"
}

case $place in
*/*)
    command -v socat >/dev/null || fail "a unix socket needs socat; or use HOST:PORT" 1
    # What socat reads at once is one datagram: from a pipe it might read a part.
    whole=$(mktemp)
    trap 'rm -f "$whole"' EXIT
    message >"$whole"
    socat -u -b 1048576 "OPEN:$whole,rdonly" "UNIX-SENDTO:$place" || fail "$place does not take it" 1
    ;;
*:*)
    message >"/dev/tcp/${place%:*}/${place##*:}" || fail "$place does not take it" 1
    ;;
*)
    fail "$place is neither a path nor HOST:PORT" 2
    ;;
esac
