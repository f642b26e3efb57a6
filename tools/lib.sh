# Common parts of the scripts of make check; sourced, not run.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$top/build
jobs=$(nproc 2>/dev/null || echo 2)

die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# The server's pg_config: PG_CONFIG, else Debian's PostgreSQL 15, else the path's.
find_pg_config()
{
	if [ -n "${PG_CONFIG:-}" ]; then command -v "$PG_CONFIG"
	elif [ -x /usr/lib/postgresql/15/bin/pg_config ]; then echo /usr/lib/postgresql/15/bin/pg_config
	else command -v pg_config
	fi
}
