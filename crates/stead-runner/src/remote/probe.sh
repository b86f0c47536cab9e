# Looks at the target and becomes the executor if it is there.
# Arguments: workdir or empty, SHA-256 of the program, its `uname -sm` pattern or empty, run, `clean` or empty, the
# system (`uname -s`) or empty.
workdir=$1 sha=$2 fits=$3 run=$4 clean=$5 os=$6
say() { printf 'STEAD-PROBE %s %s\n' "$1" "$2"; }
say begin 1
if [ -n "$os" ]; then system="$os $(uname -m)"; else system=$(uname -sm); fi
say system "$system"
uid=$(id -u)
say uid "$uid"
base=
usable() {
  if [ -L "$1" ]; then say bad "$1: it is a symbolic link"; return 1; fi
  if [ ! -d "$1" ]; then
    why=$( (umask 077; mkdir -p "$1") 2>&1) || { say bad "$1: it cannot be made (${why##*: })"; return 1; }
  fi
  if [ ! -O "$1" ]; then say bad "$1: another account owns it"; return 1; fi
  probe=$1/.probe.$$
  if ! (umask 077; printf '#!/bin/sh\nexit 0\n' > "$probe") 2>/dev/null || [ ! -s "$probe" ]; then
    rm -f "$probe"; say bad "$1: it cannot be written to, or is full"; return 1
  fi
  chmod 700 "$probe"
  if "$probe" 2>/dev/null; then rm -f "$probe"; return 0; fi
  rm -f "$probe"; say bad "$1: nothing may be executed there (noexec)"; return 1
}
if [ -n "$workdir" ]; then
  usable "$workdir" && base=$workdir
else
  set --
  [ "$uid" = 0 ] && set -- /var/lib/stead
  [ -n "${XDG_CACHE_HOME:-}" ] && set -- "$@" "$XDG_CACHE_HOME/stead"
  [ -n "${HOME:-}" ] && set -- "$@" "$HOME/.cache/stead"
  for place in "$@" "/tmp/stead-$uid"; do
    if usable "$place"; then base=$place; break; fi
  done
fi
if [ -z "$base" ]; then say end nowhere; exit 0; fi
say base "$base"
for tool in zstd gzip; do command -v $tool >/dev/null 2>&1 && { say packing $tool; break; }; done
if [ -z "$fits" ] || [ "$system" != "$fits" ]; then say end foreign; exit 0; fi
program=$base/bin/$sha/stead stamp=$base/bin/$sha/stamp
if [ ! -f "$program" ] || [ -L "$program" ] || [ ! -O "$program" ]; then say end absent; exit 0; fi
now=$(stat -c '%a %i %s %z' "$program" 2>/dev/null)
case $now in
  '700 '*) ;;
  '') [ -x "$program" ] || { say end absent; exit 0; } ;;
  *) say end absent; exit 0 ;;
esac
if [ -z "$now" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
  found=$({ sha256sum < "$program" || shasum -a 256 < "$program" || openssl dgst -sha256 -r < "$program"; } 2>/dev/null)
  if [ "${found%% *}" != "$sha" ]; then say end absent; exit 0; fi
  (umask 077; printf '%s\n' "$now" > "$stamp") 2>/dev/null
fi
say end present
exec "$program" executor --attach "$run" --base "$base" ${clean:+--clean}
