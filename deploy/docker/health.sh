#!/bin/bash
# Whether the daemon of this container still does its work: health.sh PORT asks for /healthz on 127.0.0.1, at the port of its
# metrics. Docker does not restart what is unhealthy, so `docker ps` and whoever watches it are told.
set -euo pipefail
port=$1
exec 3<>"/dev/tcp/127.0.0.1/$port"
printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3
read -r -t 3 _ status _ <&3
tail -n 1 <&3  # what it says; `docker inspect` shows it
[ "$status" = 200 ]
