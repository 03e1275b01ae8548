#!/usr/bin/env bash
# A private Docker engine for tests: started from nothing, taken away again without a trace on the machine's network.
#
#   engine.sh start    what lacks is installed from Debian's packages (root), then the engine is started
#   engine.sh base     python:3.11-slim-bookworm: pulled, or made from Debian's packages where it cannot be
#   engine.sh wheels   an image of the wheels that pip's configured find-links hold; prints its name, or scratch
#   engine.sh stop     ends the engine and undoes what it did to bridges, rules, mounts and forwarding
#   engine.sh purge    stop, and the images too
#   engine.sh env      what a shell needs to speak to it: eval "$(tests/docker/engine.sh env)"
#
# All state lies in TIDEMILL_DOCKER (default /var/tmp/tidemill-docker), images included, so that the next run is warm.
# Exit code 75: this machine cannot run an engine; the last line says why.
set -euo pipefail

DIR=${TIDEMILL_DOCKER:-/var/tmp/tidemill-docker}
export DOCKER_HOST=unix://$DIR/docker.sock DOCKER_CONFIG=$DIR/config DEBIAN_FRONTEND=noninteractive
DOCKER=/usr/bin/docker # Debian's, of the engine's own version; another on the path may lack what builds need
BASE=python:3.11-slim-bookworm
WHEELS=tidemill/wheels:test
SUBNETS=10.209 # of its bridge and of its networks: nothing else of the machine's
FREE_MB=5000   # base, wheels, layers while they are built, and the image

say() { echo "engine: $*" >&2; }
cannot() { say "$*"; exit 75; }
up() { [ -S "$DIR/docker.sock" ] && "$DOCKER" version >/dev/null 2>&1; }

install_what_lacks() {
  local lacking=()
  command -v dockerd >/dev/null || lacking+=(docker.io)
  [ -x "$DOCKER" ] || ! apt-cache show docker-cli >/dev/null 2>&1 || lacking+=(docker-cli) # from Debian 13 on a package of its own
  command -v iptables >/dev/null || lacking+=(iptables)
  command -v ip >/dev/null || lacking+=(iproute2)
  command -v mmdebstrap >/dev/null || lacking+=(mmdebstrap)
  [ ${#lacking[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || cannot "no ${lacking[*]}, and no apt-get to install it with"
  say "installing ${lacking[*]}"
  # Installed, not started: the engine of these tests is its own.
  printf '#!/bin/sh\nexit 101\n' > "$DIR/policy-rc.d"; chmod 755 "$DIR/policy-rc.d"
  local policy=/usr/sbin/policy-rc.d ours=""
  [ -e $policy ] || { ln -s "$DIR/policy-rc.d" $policy && ours=yes; }
  local apt=(apt-get -qq -o DPkg::Lock::Timeout=120) failed=""
  { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${lacking[@]}"; } > "$DIR/apt.log" 2>&1 || failed=yes
  [ -z "$ours" ] || rm -f $policy
  [ -z "$failed" ] || cannot "${lacking[*]} cannot be installed: $(tail -1 "$DIR/apt.log")"
}

# Compose v2: the machine's, else that of the next Debian release, unpacked privately; it needs no more than a libc of 2.34.
compose() {
  "$DOCKER" compose version >/dev/null 2>&1 && return
  local place="$DIR/compose.fetched"
  mkdir -p "$place/lists/partial" "$place/cache/archives/partial" "$DIR/config/cli-plugins"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(debian) trixie main" > "$place/sources.list"
  local options=(-qq -o "Dir::Etc::sourcelist=$place/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$place/lists" -o "Dir::Cache=$place/cache" -o APT::Sandbox::User=root)
  (cd "$place" && apt-get "${options[@]}" update && apt-get "${options[@]}" download docker-compose && dpkg -x docker-compose_*.deb x) \
    > "$DIR/apt.log" 2>&1 || cannot "no compose v2: $(tail -1 "$DIR/apt.log")"
  cp "$(find "$place/x" -path '*/cli-plugins/docker-compose')" "$DIR/config/cli-plugins/docker-compose"
  rm -rf "$place"
}

# The archive that apt is configured for.
debian() {
  local uri
  uri=$(cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '/^URIs:.*debian\/?$/ {print $2; exit}')
  [ -n "$uri" ] || uri=$(grep -hE '^deb .*debian/? ' /etc/apt/sources.list 2>/dev/null | grep -oE 'https?://[^ ]+' | head -1 || true)
  echo "${uri:-http://deb.debian.org/debian}"
}

start() {
  [ "$(id -u)" = 0 ] || cannot "an engine of its own needs root"
  mkdir -p "$DIR/config"
  up && { say "already up"; return; }
  stop # what a killed run may have left
  [ "$(df -Pm "$DIR" | awk 'NR==2 {print $4}')" -ge $FREE_MB ] ||
    cannot "less than $FREE_MB MB free in $DIR (TIDEMILL_DOCKER=DIR chooses another)"
  install_what_lacks
  compose
  ! ip -o -4 addr | grep -q " $SUBNETS\." || cannot "this machine is in $SUBNETS.0.0 itself"
  ! ip link show docker0 >/dev/null 2>&1 || cannot "another Docker engine is at work here (docker0), and their rules would mix"
  remember
  echo 1 > /proc/sys/net/ipv4/ip_forward # were it dockerd that turns it on, it would forbid everybody else's forwarding too
  setsid dockerd --data-root "$DIR/data" --exec-root "$DIR/exec" --pidfile "$DIR/docker.pid" -H "$DOCKER_HOST" \
    --bip $SUBNETS.0.1/24 --default-address-pool "base=$SUBNETS.128.0/17,size=24" --log-opt max-size=5m --shutdown-timeout 5 \
    > "$DIR/dockerd.log" 2>&1 < /dev/null &
  for _ in $(seq 300); do
    up && { say "up, $("$DOCKER" info -f '{{.ServerVersion}} on {{.Driver}}')"; echo started; return; }
    sleep 0.1
  done
  stop
  cannot "dockerd does not come up: $(grep -v level=info "$DIR/dockerd.log" | tail -1)"
}

remember() {
  cat /proc/sys/net/ipv4/ip_forward > "$DIR/forward.before"
  iptables-save | grep -c DOCKER > "$DIR/chains.before" || true
}

base() {
  "$DOCKER" image inspect "$BASE" >/dev/null 2>&1 && return
  timeout 120 "$DOCKER" pull -q "$BASE" >/dev/null 2>&1 && { say "base pulled"; return; }
  say "the base image cannot be pulled: making one from Debian's packages"
  # With the machine's own list of certificate authorities: what pip trusts here, it has to trust there.
  timeout 600 mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='copy-in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs' bookworm "$DIR/base.tar" "$(debian)" \
    > "$DIR/base.log" 2>&1 || cannot "no base image: $(tail -1 "$DIR/base.log")"
  "$DOCKER" import -c 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' -c 'CMD ["python3"]' "$DIR/base.tar" "$BASE" >/dev/null
  rm -f "$DIR/base.tar"
  say "base made"
}

wheels() {
  local folder
  folder=$(python3 -m pip config get global.find-links 2>/dev/null || true)
  folder=${PIP_FIND_LINKS:-$folder}
  ls "$folder"/*.whl >/dev/null 2>&1 || { echo scratch; return; }
  "$DOCKER" image inspect "$WHEELS" >/dev/null 2>&1 || tar -C "$folder" -c . | "$DOCKER" import - "$WHEELS" >/dev/null
  echo "$WHEELS"
}

stop() {
  local pid=""
  [ ! -f "$DIR/docker.pid" ] || pid=$(cat "$DIR/docker.pid")
  if [ -n "$pid" ] && grep -qs dockerd "/proc/$pid/comm"; then
    if up; then
      "$DOCKER" ps -aq | xargs -r timeout 60 "$DOCKER" rm -fv >/dev/null 2>&1 || true
      "$DOCKER" network prune -f >/dev/null 2>&1 || true
    fi
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 150); do [ -d "/proc/$pid" ] || break; sleep 0.1; done
    [ ! -d "/proc/$pid" ] || kill -9 "$pid" 2>/dev/null || true
  fi
  containerd_of_ours
  awk -v d="$DIR/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r | xargs -r -n1 umount -l || true
  [ ! -f "$DIR/forward.before" ] || undo_network
  rm -rf "$DIR/docker.sock" "$DIR/docker.pid" "$DIR/exec" "$DIR"/*.before
}

# dockerd ends its containerd; where dockerd was killed, that one and its shims stay behind.
containerd_of_ours() {
  local file="$DIR/exec/containerd/containerd.pid" pid
  if [ -f "$file" ] && pid=$(cat "$file") && grep -qs "$DIR" "/proc/$pid/cmdline"; then kill "$pid" 2>/dev/null || true; fi
  for pid in $(grep -ls "$DIR/exec" /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3); do
    grep -qs containerd-shim "/proc/$pid/cmdline" && kill -9 "$pid" 2>/dev/null || true
  done
}

# What dockerd leaves behind, and nothing else: other rules of the machine may have come meanwhile.
undo_network() {
  local bridge rule table
  for bridge in $(ip -o link show type bridge | awk -F': ' '{print $2}'); do
    if [ "$bridge" = docker0 ] || ip -o -4 addr show dev "$bridge" | grep -q " $SUBNETS\."; then ip link del "$bridge" || true; fi
  done
  if [ "$(cat "$DIR/chains.before")" = 0 ]; then
    for table in filter nat; do
      while rule=$(iptables -t $table -S | grep -m1 -E -e "^-A [A-Z]+ .*(DOCKER|docker0|br-[0-9a-f]{12}|$SUBNETS\.)"); do
        eval "iptables -t $table ${rule/#-A/-D}" || break
      done
      iptables -t $table -S | awk '/^-N DOCKER/ {print $2}' | while read -r chain; do iptables -t $table -F "$chain"; done
      iptables -t $table -S | awk '/^-N DOCKER/ {print $2}' | while read -r chain; do iptables -t $table -X "$chain"; done
    done
  fi
  cat "$DIR/forward.before" > /proc/sys/net/ipv4/ip_forward
}

purge() {
  stop
  rm -rf "$DIR"
}

env() { echo "export DOCKER_HOST=$DOCKER_HOST DOCKER_CONFIG=$DOCKER_CONFIG"; }

case "${1:-}" in
  start | base | wheels | stop | purge | env) "$1" ;;
  *) sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
