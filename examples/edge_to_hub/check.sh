#!/usr/bin/env bash
# Checks that what the edge has is at the hub, record by record; see links.toml for the mirror between them.
#
# Exit codes are those of `ottla audit compare`: 0 all of it arrived or is on its way, 3 something is missing, doubled or
# altered, 4 something is unknown, for example because the mirror has not counted for ten minutes. If it is 3,
# differences.jsonl names the records by partition and offset. audit.html is a page for people.
set -euo pipefail

edge=${EDGE:-localhost:9092}
hub=${HUB:-localhost:9192}
delay=${DELAY:-5m} # a difference is late, and not yet wrong, until this long after its ten minutes have ended

ottla audit tally clicks --tier edge --bootstrap "$edge" --audit-bootstrap "$hub"

code=0
ottla audit compare clicks --tier edge --tier hub --bootstrap "$hub" --delay "$delay" --html audit.html || code=$?
if [ "$code" = 3 ]; then
  ottla audit find clicks --left "$edge" --right "$hub" --right-topic oslo.clicks --json >differences.jsonl || [ $? = 3 ]
fi
exit "$code"
