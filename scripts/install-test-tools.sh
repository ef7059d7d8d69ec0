#!/bin/sh
# Installs the Debian packages named as arguments (see test-tools.json) without leaving any of their services running.
#
# Debian starts a service as soon as its package is installed; a policy-rc.d that answers 101 forbids that for the time of
# the installation. A service that would start at the next boot is switched off too, but only for packages that were not
# there before: what the machine's owner installed stays as it was.
set -eu

if [ "$#" -eq 0 ]; then
  echo "usage: $0 PACKAGE..." >&2
  exit 2
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "$0: needs root on Debian" >&2
  exit 1
fi

new=""
for package in "$@"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || new="$new $package"
done

policy=/usr/sbin/policy-rc.d
made_policy=no
cleanup() {
  if [ "$made_policy" = yes ]; then rm -f "$policy"; fi
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM
if [ ! -e "$policy" ]; then
  made_policy=yes
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
install() {
  apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "$@" >/dev/null
}
# A machine with fresh package lists needs no update.
install "$@" 2>/dev/null || { apt-get -qq -o DPkg::Lock::Timeout=120 update && install "$@"; }

for package in $new; do
  case "$package" in
    redis-server | etcd-server)
      service=$(echo "$package" | sed 's/^etcd-server$/etcd/')
      if command -v systemctl >/dev/null 2>&1; then systemctl disable "$service" >/dev/null 2>&1 || true; fi
      ;;
  esac
done
