#!/bin/bash
# Whether a daemon of this container answers: health.sh PORT asks for its metrics on 127.0.0.1. A daemon whose loops
# hang may still answer; Docker does not restart what is unhealthy, so `docker ps` and whoever watches it are told.
set -euo pipefail
port=$1
exec 3<>"/dev/tcp/127.0.0.1/$port"
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
read -r -t 3 _ status _ <&3
[ "$status" = 200 ]
