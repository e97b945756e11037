#!/bin/sh
# The container's entry point: joins once, then is the agent. It needs
#   APPORTION_SERVER            where the server is          (to join)
#   APPORTION_JOIN_TOKEN_FILE   a file with a join token     (to join)
# and a volume at APPORTION_AGENT_STATE (/var/lib/apportion-agent) that outlives the container: a node
# that lost its state is a stranger. What it is given is passed on to `apportion agent run`.
set -eu
state="${APPORTION_AGENT_STATE:-/var/lib/apportion-agent}"
if [ ! -e "$state/node.json" ]; then
    apportion agent join --state "$state" \
        --server "${APPORTION_SERVER:?needed to join: the URL of the server}" \
        --token-file "${APPORTION_JOIN_TOKEN_FILE:?needed to join: a file with a join token}"
fi
exec apportion agent run --state "$state" "$@"
