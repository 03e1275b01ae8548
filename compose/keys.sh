#!/bin/sh
# The keys of the containers, made once: each role its own, in that role's own volume (/key/ROLE), good for that role and nothing else.
# The broker's secret and the allow-list stay in /keys, with the key `local` for the commands of people who are in the broker's container.
set -eu
umask 077

for role in env rollout reward reference actor-train weight-sync; do
  if [ ! -f "/key/$role/key" ] || [ ! -f "/keys/allowed/$role.pub" ]; then
    [ ! -f "/keys/allowed/$role.pub" ] || tidemill keys revoke "$role" --directory /keys # its volume was removed, and the secret with it
    tidemill keys new "$role" --role "$role" --directory /keys > /dev/null
    cp "/keys/clients/$role.key" "/key/$role/.key"
    mv "/key/$role/.key" "/key/$role/key" # whole or not at all
    rm "/keys/clients/$role.key"
  fi
  cp /keys/server.pub "/key/$role/server.pub"
done
[ -f /keys/allowed/local.pub ] || tidemill keys new local --role observer --directory /keys > /dev/null
tidemill keys list --directory /keys
