"""Images of real databases, from Debian's packages: postgres:15, redis:7, mariadb:10.11, and a client for all of them.

No registry of images is needed. Each image has what the official one of its name has for a compose file: variables,
folder for first scripts, volume, port, stop signal, and an entrypoint that starts as root and becomes its own user.
"""

from __future__ import annotations

import hashlib
import inspect
import shutil
import subprocess
import tempfile
from pathlib import Path

_PACKAGES = (
    *("dash", "bash", "coreutils", "findutils", "grep", "sed", "gzip", "mawk", "hostname", "procps", "util-linux"),
    *("gosu", "libc-bin", "base-passwd", "postgresql-15", "redis-server", "mariadb-server", "python3-psycopg2"),
    *("python3-redis", "python3-pymysql"),
)
_CACHE = Path(__file__).parents[3] / ".cache" / "docker"
_USERS = {"postgres": 999, "redis": 998, "mysql": 997}
_MERGED = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")
"""Links to the folders of the same name in /usr, where Debian has its programs."""

_POSTGRES = r"""#!/bin/bash
set -Eeo pipefail
[ "${1:0:1}" != - ] || set -- postgres "$@"
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA" /var/run/postgresql
    chmod 00700 "$PGDATA"
    chmod 03775 /var/run/postgresql
    find "$PGDATA" /var/run/postgresql ! -user postgres -exec chown postgres '{}' +
    exec gosu postgres "$0" "$@"
fi
: "${POSTGRES_USER:=postgres}" "${POSTGRES_DB:=$POSTGRES_USER}"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    [ -n "$POSTGRES_PASSWORD" ] || { echo "Error: superuser password is not specified." >&2; exit 1; }
    initdb --username="$POSTGRES_USER" --pwfile=<(echo "$POSTGRES_PASSWORD")
    echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    export PGUSER=$POSTGRES_USER PGHOST=
    pg_ctl -D "$PGDATA" -o "-c listen_addresses=''" -w start
    [ "$POSTGRES_DB" = postgres ] || createdb "$POSTGRES_DB"
    for file in /docker-entrypoint-initdb.d/*; do
        case $file in
            *.sh) if [ -x "$file" ]; then "$file"; else . "$file"; fi ;;
            *.sql) psql -v ON_ERROR_STOP=1 --no-psqlrc -d "$POSTGRES_DB" -f "$file" ;;
        esac
    done
    pg_ctl -D "$PGDATA" -m fast -w stop
    unset PGUSER PGHOST
    echo "PostgreSQL init process complete; ready for start up."
fi
exec "$@"
"""
_REDIS = r"""#!/bin/sh
set -e
[ "${1#-}" = "$1" ] || set -- redis-server "$@"
if [ "$(id -u)" = 0 ]; then
    find . ! -user redis -exec chown redis '{}' +
    exec setpriv --reuid redis --regid redis --clear-groups "$0" "$@"
fi
exec "$@" --bind '*' --protected-mode no
"""
_MARIADB = r"""#!/bin/bash
set -eo pipefail
if [ "$(id -u)" = 0 ]; then
    mkdir -p /run/mysqld
    find /var/lib/mysql /run/mysqld ! -user mysql -exec chown mysql: '{}' +
    exec gosu mysql "$0" "$@"
fi
if [ ! -d /var/lib/mysql/mysql ]; then
    mariadb-install-db --datadir=/var/lib/mysql --auth-root-authentication-method=normal --skip-test-db > /dev/null
    "$@" --skip-networking &
    until mariadb-admin -u root ping > /dev/null 2>&1; do sleep 0.2; done
    mariadb -u root <<< "CREATE DATABASE \`$MARIADB_DATABASE\`;
        CREATE USER '$MARIADB_USER'@'%' IDENTIFIED BY '$MARIADB_PASSWORD';
        GRANT ALL ON \`$MARIADB_DATABASE\`.* TO '$MARIADB_USER'@'%';
        ALTER USER root@localhost IDENTIFIED BY '$MARIADB_ROOT_PASSWORD';"
    for file in /docker-entrypoint-initdb.d/*.sql; do
        [ ! -e "$file" ] || mariadb -u root -p"$MARIADB_ROOT_PASSWORD" "$MARIADB_DATABASE" < "$file"
    done
    mariadb-admin -u root -p"$MARIADB_ROOT_PASSWORD" shutdown
    wait
fi
exec "$@"
"""
_ENTRYPOINTS = {"postgres": _POSTGRES, "redis": _REDIS, "mariadb": _MARIADB}
_DATA = {"var/lib/postgresql/data": "postgres", "data": "redis", "var/lib/mysql": "mysql"}

_PATH = "PATH=/usr/lib/postgresql/15/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IMAGES = {
    "postgres:15": [
        *(f"ENV {_PATH}", "ENV LANG=C.UTF-8", "ENV PGDATA=/var/lib/postgresql/data", "VOLUME /var/lib/postgresql/data"),
        *("STOPSIGNAL SIGINT", "EXPOSE 5432", 'ENTRYPOINT ["/postgres"]', 'CMD ["postgres"]'),
    ],
    "redis:7": [
        *(f"ENV {_PATH}", "VOLUME /data", "WORKDIR /data", "EXPOSE 6379", 'ENTRYPOINT ["/redis"]'),
        'CMD ["redis-server"]',
    ],
    "mariadb:10.11": [
        *(f"ENV {_PATH}", "VOLUME /var/lib/mysql", "EXPOSE 3306", 'ENTRYPOINT ["/mariadb"]'),
        'CMD ["mariadbd", "--bind-address=0.0.0.0"]',
    ],
    "database-client": [f"ENV {_PATH}", "ENV LANG=C.UTF-8", 'CMD ["bash"]'],
}


def import_all() -> None:
    """Give the images to the engine of DOCKER_HOST. The first time, 95 MB of packages are downloaded."""
    tar = _root()
    _run("docker", "import", tar, f"database-root:{tar.stem}")
    for name, lines in _IMAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            for program, text in _ENTRYPOINTS.items():
                (Path(folder) / program).write_text(text)
                (Path(folder) / program).chmod(0o755)
            copied = f"COPY {' '.join(_ENTRYPOINTS)} /"
            (Path(folder) / "Dockerfile").write_text("\n".join([f"FROM database-root:{tar.stem}", copied, *lines]))
            _run("docker", "build", "-q", "-t", name, folder)


def _root() -> Path:
    """The file system of all images, as a tar file that is kept."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        names = [line.split()[1] for line in _apt(Path(folder), "--print-uris").splitlines()]
        recipe = inspect.getsource(_unpack) + "".join(names)
        target = _CACHE / f"databases-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.tar"
        if not target.exists():
            packages = _CACHE / "packages"
            _apt(packages, "--download-only", "-o", "APT::Sandbox::User=root")
            root = Path(folder) / "root"
            _unpack([packages / name for name in names], root)
            partial = target.with_suffix(".partial")
            _run("tar", "-C", root, "--numeric-owner", "-cf", partial, ".")
            partial.replace(target)
    return target


def _apt(archives: Path, *options: str) -> str:
    """apt-get install as on a machine that has nothing yet: so it names all that a root needs. Packages that are in
    `archives` are left out."""
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile() as nothing:
        known = ["-o", f"Dir::State::status={nothing.name}", "-o", f"Dir::Cache::archives={archives}"]
        given = ["-o", "Debug::NoLocking=1", "-y", "-qq", "--no-install-recommends", *options]
        return _run("apt-get", *known, *given, "install", *_PACKAGES)


def _unpack(packages: list[Path], root: Path) -> None:
    """Unpack without the packages' scripts. What these would do for a database is done here."""
    root.mkdir(0o755)
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        archive = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
        left_out = [f"--exclude=./usr/share/{name}" for name in ("doc", "man", "locale", "info", "mariadb/mroonga")]
        subprocess.run(["tar", "-C", root, "--keep-directory-symlink", *left_out, "-x"], input=archive, check=True)
    (root / "usr/bin/awk").symlink_to("mawk")
    users = "".join(f"{name}:x:{number}:{number}::/var/lib/{name}:/bin/bash\n" for name, number in _USERS.items())
    groups = "".join(f"{name}:x:{number}:\n" for name, number in _USERS.items())
    (root / "etc/passwd").write_text(f"root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/tmp:/bin/bash\n{users}")
    (root / "etc/group").write_text(f"root:x:0:\nagent:x:1000:\n{groups}")
    (root / "tmp").chmod(0o1777)
    (root / "docker-entrypoint-initdb.d").mkdir()
    for name, user in _DATA.items():
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
        shutil.chown(root / name, _USERS[user], _USERS[user])
    _run("ldconfig", "-r", str(root))


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
