#!/bin/bash
# Runs in the machine of packages_test.py: `inside.sh chroot` before it is booted, then `inside.sh booted`. Ends with ALL DONE
# when everything was as it should be.
set -euo pipefail
trap 'echo "FAILED in line $LINENO"; journalctl --no-pager -u "poseidon-*" | tail -60' ERR
export DEBIAN_FRONTEND=noninteractive
daemons=(poseidon-coordinator poseidon-server poseidon-worker)
at=127.0.0.1:4700

# until_true SECONDS WHAT COMMAND...
until_true() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    if [ "$SECONDS" -ge "$end" ]; then echo "waited in vain until $what"; return 1; fi
    sleep 0.2
  done
}
# must_fail COMMAND... (set -e does not look at "! command")
must_fail() {
  if "$@" >/dev/null 2>&1; then echo "should have failed: $*"; return 1; fi
}
runs_as_the_user() { grep -qsE "^Uid:[[:space:]]+$(id -u poseidon)[[:space:]]" /proc/[0-9]*/status; }
pid_of() { systemctl show --property=MainPID --value "$1"; }
other_pid() { local now; now=$(pid_of "$1"); [ "$now" != 0 ] && [ "$now" != "$2" ]; }
nodes_idle() { [ "$(poseidon status --coordinator $at | grep -c ' idle ')" = 2 ]; }
train() {
  until_true 30 "both nodes have joined" nodes_idle
  poseidon submit /srv/job.json --coordinator $at --workers 1 --servers 1 --wait | tail -3
}

# removed: the programs are gone, the links of `systemctl enable` too; what is configured and what was kept stays.
removed() {
  must_fail command -v poseidon-server
  for daemon in "${daemons[@]}"; do
    [ -e "/etc/poseidon/${daemon#poseidon-}.json" ]
    [ "$(find /etc/systemd/system -name "$daemon.service" | wc -l)" = 0 ]
  done
  getent passwd poseidon
}
nothing_left() {
  must_fail getent passwd poseidon
  must_fail getent group poseidon
  local left  # whoever gets their numbers next would have what belongs to nobody
  left=$(find / -xdev \( -path /proc -o -path /sys -o -path /packages -o -path /upgrade -o -path /run -o -path /var/log \
    -o -path /var/cache \) -prune -o \( -name '*poseidon*' -o -nouser -o -nogroup \) -print)
  [ -z "$left" ] || { echo "left behind: $left"; return 1; }
}

if [ "$1" = chroot ]; then
  [ ! -d /run/systemd/system ]
  echo "== not booted: enabled, and removed; enabled again, and purged"
  for how in remove purge; do
    systemctl enable "${daemons[@]}"
    [ "$(find /etc/systemd/system/multi-user.target.wants -name 'poseidon-*' | wc -l)" = 3 ]
    apt-get $how -y 'poseidon-*' >/dev/null
    if [ $how = remove ]; then removed; else nothing_left; fi
    dpkg -i /packages/*.deb >/dev/null
  done
  echo "ALL DONE"
  exit
fi

echo "== installed: the user is there, nothing runs, nothing is enabled"
getent passwd poseidon
for daemon in "${daemons[@]}"; do
  [ "$(systemctl is-enabled $daemon || true)" = disabled ]
  [ "$(systemctl is-active $daemon || true)" = inactive ]
done

echo "== started: ready means that it listens; not as root; a job trains"
for daemon in "${daemons[@]}"; do
  mkdir -p /run/systemd/system/$daemon.service.d
  printf '[Service]\nWatchdogSec=5\n' > /run/systemd/system/$daemon.service.d/fast.conf
done
systemctl daemon-reload
systemctl enable --now "${daemons[@]}"
for daemon in "${daemons[@]}"; do
  systemctl is-active $daemon
  [ "$(stat -c %U "/proc/$(pid_of $daemon)")" = poseidon ]
done
systemctl show --property=StatusText poseidon-coordinator | grep "listens on 127.0.0.1:4700"
train
exec 3<>/dev/tcp/127.0.0.1/9480
printf 'GET /api/v1/status HTTP/1.0\r\n\r\n' >&3
grep -q '"state":"done"' <&3
exec 3<&-
find /var/lib/poseidon/coordinator/runs -name model.safetensors | grep .
must_fail runuser -u nobody -- ls /var/lib/poseidon/server

echo "== killed: started again"
before=$(pid_of poseidon-server)
kill -9 "$before"
until_true 30 "the server is back" other_pid poseidon-server "$before"

echo "== frozen: the watchdog ends it, and it is started again"
for daemon in "${daemons[@]}"; do
  before=$(pid_of $daemon)
  kill -STOP "$before"
  until_true 60 "$daemon is back" other_pid $daemon "$before"
done
train

echo "== upgraded: goes on with the new programs, the configuration is kept though the package's own is another now"
sed -i 's/"metrics-listen": "127.0.0.1:9461"/"metrics-listen": "127.0.0.1:9471"/' /etc/poseidon/server.json
# One that does not start is no reason for the upgrade to fail.
cp /etc/poseidon/worker.json /good.json
echo '{"no-such-option": 1}' > /etc/poseidon/worker.json
must_fail systemctl restart poseidon-worker
before=$(pid_of poseidon-server)
old=$(dpkg-query --show --showformat '${Version}' poseidon-server)
dpkg -i --force-confold /upgrade/*.deb >/dev/null
until_true 30 "the server runs anew" other_pid poseidon-server "$before"
for part in common coordinator server worker cli; do
  dpkg --compare-versions "$(dpkg-query --show --showformat '${Version}' poseidon-$part)" gt "$old"
done
grep -q 9471 /etc/poseidon/server.json
[ -e /etc/poseidon/server.json.dpkg-dist ]
cat /good.json > /etc/poseidon/worker.json
systemctl restart poseidon-worker
train

echo "== stopped cleanly"
systemctl stop "${daemons[@]}"
for daemon in "${daemons[@]}"; do
  [ "$(systemctl show --property=Result --value $daemon)" = success ]
done

echo "== removed while they run: stopped; what they were told and what they keep stays"
systemctl start "${daemons[@]}"
apt-get remove -y 'poseidon-*' >/dev/null
for daemon in "${daemons[@]}"; do
  [ "$(systemctl is-active $daemon || true)" = inactive ]
done
must_fail grep -qsz '^/usr/bin/poseidon-' /proc/[0-9]*/cmdline
removed
must_fail systemctl cat poseidon-server
grep -q 9471 /etc/poseidon/server.json
[ -d /var/lib/poseidon/server ]
[ -d /var/lib/poseidon/coordinator/runs ]

echo "== purged while something runs as the user: the user stays, and apt goes on; a key of the group's is root's then"
install -d -g poseidon -m 750 /etc/poseidon/tls
install -g poseidon -m 640 /dev/null /etc/poseidon/tls/tls.key
setpriv --reuid=poseidon --regid=poseidon --clear-groups sleep 300 &
sleeper=$!
until_true 10 "it runs" runs_as_the_user
apt-get purge -y 'poseidon-*' 2>&1 | grep 'the user poseidon stays'
getent passwd poseidon
[ "$(stat -c %G /etc/poseidon/tls/tls.key)" = root ]
kill $sleeper
until_true 10 "it is gone" must_fail runs_as_the_user
userdel poseidon
rm -r /etc/poseidon

echo "== purged: nothing is left"
dpkg -i /packages/*.deb >/dev/null
apt-get purge -y 'poseidon-*' >/dev/null
nothing_left
echo "ALL DONE"
