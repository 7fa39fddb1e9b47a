#!/usr/bin/env bash
# Checks that what the edge has is at the hub, record by record; see links.toml for the mirror between them.
#
# Exit codes are those of `ottla audit compare`: 0 all of it arrived, or is late by less than five minutes, 3 something is missing, doubled or
# altered, 4 something is unknown, for example because the mirror has not counted for ten minutes. If it is 3,
# differences.jsonl names the records by partition and offset. audit.html is a page for people.
set -euo pipefail

edge=${EDGE:-localhost:9092}
hub=${HUB:-localhost:9192}

# Tiers are compared by the name that the topic has at the hub.
ottla audit tally clicks --as oslo.clicks --tier edge --bootstrap "$edge" --audit-bootstrap "$hub"

code=0
ottla audit compare oslo.clicks --tier edge --tier hub --bootstrap "$hub" --html audit.html || code=$?
if [ "$code" = 3 ]; then
  ottla audit find clicks --left "$edge" --right "$hub" --right-topic oslo.clicks --json >differences.jsonl || [ $? = 3 ]
fi
exit "$code"
