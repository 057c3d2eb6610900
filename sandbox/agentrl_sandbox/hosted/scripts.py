"""Shell scripts that run a command in a machine which allows only short requests.

A command has its own folder in the machine. The output is stored in a few numbered pieces: the writer waits until
earlier pieces were fetched. Each request names the pieces that have arrived. So a request can be sent again after a
lost connection, and no output is lost or doubled. The same holds for data sent to stdin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from shlex import quote

from agentrl_sandbox.process_tree import ADD_DESCENDANTS, KILL_CHILDREN_FIRST, LIST_PROCESSES

PIECES = 64
"""The most pieces of a stream that wait in the machine, and that a request fetches."""
MARK = "AGENTRL_COMMAND"
"""The environment variable that marks the processes of a command."""
NO_FOLDER, GONE = "cwd", "gone"

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH; "

SETUP = (
    _PATH
    + r"""
user=$1 work=$2 own=$3
id -u "$user" >/dev/null 2>&1 || useradd -m "$user" 2>/dev/null || adduser -D "$user" || exit 3
mkdir -p "$work" && chown "$user" "$work" && [ -d /tmp ] || exit 4
for tool in setsid mkfifo dd base64 grep tar find; do
  command -v $tool >/dev/null || { echo "it lacks $tool" >&2; exit 5; }
done
for place in /var/tmp /dev/shm; do
  folder=$place/agentrl
  [ -d "$place" ] && mkdir -p "$folder" && chmod 1777 "$folder" || continue
  for old in "$folder"/c*; do
    case $old in "$folder/c$own"*) ;; *) rm -rf -- "$old" ;; esac
  done
  echo "<$folder>"
  exit
done
exit 6
"""
)
"""Creates the user and the folder for the commands' folders, and prints this folder. Arguments: user, work folder, a
word. The names of the commands' folders begin with a `c` and the word. Other folders belong to the machine from which
this machine was forked; the script removes these, so that no background process waits forever. Snapshots exclude the
folder."""

_DRAIN = r"""
n=0
while dd bs=65536 count=1 of="$1/$2.$n" && [ -e "$1/$2.$n" ]; do
  [ -s "$1/$2.$n" ] || { : > "$1/$2.eof"; exit; }
  : > "$1/$2.$n.k" || break
  n=$((n + 1))
  while [ -e "$1/$2.$((n - PIECES))" ]; do sleep 0.02; done
done
: > "$1/lost"
exec cat
""".replace("PIECES", str(PIECES))
_FEED = r"""
n=0
while [ ! -e "$1/code" ] && [ -d "$1" ]; do
  if [ -e "$1/i.$n" ]; then
    cat "$1/i.$n" || break
    : > "$1/i.$n.k"
    rm -f "$1/i.$n" "$1/i.$((n - 1)).k"
    n=$((n + 1))
  elif [ -e "$1/i.end" ]; then exit
  else sleep 0.02; fi
done
: > "$1/deaf"
"""
_RUN = r"""
folder=$1
shift
echo $$ > "$folder/pid.t" && mv "$folder/pid.t" "$folder/pid"
(LIMITS; exec "$@") < "$folder/i" > "$folder/o" 2> "$folder/e"
code=$?
echo "$code" > "$folder/code.t"; mv "$folder/code.t" "$folder/code"
"""
_LAUNCH = (
    _PATH
    + r"""
folder=FOLDER
rm -rf FINISHED
mkdir -m 700 "$folder" 2>/dev/null || exit 0
cd -- CWD 2>/dev/null || { : > "$folder/cwd"; exit 0; }
mkfifo "$folder/o" "$folder/e" "$folder/i" || exit 1
unset OLDPWD
exec > /dev/null 2>&1 < /dev/null  # to open a pipe waits for its other end, and must not hold up the answer
setsid sh -c DRAIN sh "$folder" o < "$folder/o" &
setsid sh -c DRAIN sh "$folder" e < "$folder/e" &
if STDIN; then setsid sh -c FEED sh "$folder" > "$folder/i" &
else : > "$folder/i" & fi
MARK=TOKEN setsid sh -c RUN sh "$folder" ARGV &
exit 0
"""
)

_POLL = (
    _PATH
    + r"""
folder=$1 o=$2 e=$3 left=$4
shift 4
[ -d "$folder" ] || { echo "TOKEN gone"; exit; }
[ ! -e "$folder/cwd" ] || { echo "TOKEN cwd"; exit; }
for name in o e; do
  [ $name = o ] && n=$o || n=$e
  set --
  while n=$((n - 1)) && [ -e "$folder/$name.$n" ]; do set -- "$@" "$folder/$name.$n" "$folder/$name.$n.k"; done
  [ $# = 0 ] || rm -f "$@"
done
is_over() { [ -e "$folder/o.eof" ] && [ -e "$folder/e.eof" ] && [ -e "$folder/code" ]; }
since=0
while [ "$left" -gt 0 ] && [ ! -e "$folder/o.$o.k" ] && [ ! -e "$folder/e.$e.k" ] && ! is_over; do
  [ ! -e "$folder/code" ] || { since=$((since + 1)); [ $since -lt 12 ] || break; }
  sleep 0.02
  left=$((left - 1))
done
state=runs code=-
if [ -e "$folder/lost" ]; then state=lost; elif is_over; then state=over; fi
[ ! -e "$folder/code" ] || read -r code < "$folder/code"
echo "TOKEN $code"
for name in o e; do
  [ $name = o ] && n=$o || n=$e
  set --
  while [ -e "$folder/$name.$n.k" ] && [ $# -lt PIECES ]; do set -- "$@" "$folder/$name.$n"; n=$((n + 1)); done
  echo "$#"
  [ $# = 0 ] || cat "$@" | base64
  echo "."
  [ ! -e "$folder/$name.$n.k" ] || state=more
done
echo "$state"
""".replace("PIECES", str(PIECES))
)
"""Returns new output. Arguments: folder, numbers of arrived pieces of stdout and of stderr, and how long to wait for
output, in steps of 20 ms."""

_SEND = (
    _PATH
    + r"""
folder=$1 n=$2 left=150
if [ -e "$folder/i.$n.k" ]; then left=0
elif [ -n "$3" ]; then printf %s "$3" | base64 -d > "$folder/t.i" && mv "$folder/t.i" "$folder/i.$n"
elif [ -e "$folder/up" ]; then mv "$folder/up" "$folder/i.$n"; fi
while [ "$left" -gt 0 ] && [ ! -e "$folder/i.$n.k" ] && [ ! -e "$folder/deaf" ] && [ ! -e "$folder/code" ]; do
  sleep 0.02
  left=$((left - 1))
done
state=full
[ ! -e "$folder/i.$n.k" ] || state=taken
if [ -e "$folder/deaf" ] || [ -e "$folder/code" ] || [ ! -d "$folder" ]; then state=deaf; fi
echo "TOKEN $state"
"""
)
"""Sends a piece of stdin. Arguments: folder, number of the piece, and the bytes in base64, or an empty text if the file
`up` has the bytes."""

_KILL = (
    _PATH
    + r"""
exec 2>/dev/null
folder=$1 before= round=0 root=
mkdir -m 755 "$folder" && : > "$folder/o.eof" && : > "$folder/e.eof"  # a launch still under way finds it
[ ! -e "$folder/pid" ] || read -r root < "$folder/pid"
while [ "$round" -lt 100 ]; do
  round=$((round + 1)) found=
"""
    + LIST_PROCESSES
    + r"""
  marked=$(grep -lasF "MARK=TOKEN" /proc/[0-9]*/environ)
  tree=" $root "
  for file in $marked; do pid=${file#/proc/}; tree="$tree${pid%/environ} "; done
"""
    + ADD_DESCENDANTS
    + r"""
  for pid in $tree; do case $pairs in *" $pid:"*) found="$found $pid" ;; esac; done
  tree=$found
  [ -n "$tree" ] || { round=ended; break; }
  if [ "$tree" = "$before" ]; then
"""
    + KILL_CHILDREN_FIRST
    + r"""
    sleep 0.02
    before=
    continue
  fi
  before=$tree
  kill -STOP $tree
done
[ "$round" = ended ] || exit 1
[ -e "$folder/code" ] || { echo 137 > "$folder/code.t"; mv "$folder/code.t" "$folder/code"; }
echo "TOKEN killed"
"""
)
"""Kills a command. Argument: folder. All processes are first stopped and then killed, as a stopped process cannot start
children."""


def launch(
    folder: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    stdin: bool,
    limits: str,
    finished: Sequence[str],
) -> str:
    """The script that starts a command. If it is sent twice, the command starts once. `finished` has the folders of
    finished commands, which are removed."""
    words = ["env", *(f"{name}={value}" for name, value in env.items()), *argv]
    return _filled(
        _LAUNCH,
        FOLDER=quote(folder),
        FINISHED=" ".join(map(quote, finished)),
        CWD=quote(cwd),
        DRAIN=quote(_DRAIN),
        FEED=quote(_FEED),
        STDIN="true" if stdin else "false",
        MARK=MARK,
        TOKEN=_token(folder),
        RUN=quote(_RUN.replace("LIMITS", limits)),
        ARGV=" ".join(map(quote, words)),
    )


def poll(folder: str, stdout: int, stderr: int, ticks: int) -> str:
    return _called(_POLL, folder, str(stdout), str(stderr), str(ticks))


def send(folder: str, number: int, base64: str) -> str:
    return _called(_SEND, folder, str(number), base64)


def kill(folder: str) -> str:
    return _called(_KILL, folder)


def _called(script: str, folder: str, *args: str) -> str:
    body = _filled(script, MARK=MARK, TOKEN=_token(folder))
    return f"sh -c {quote(body)} sh {' '.join(map(quote, (folder, *args)))}"


def _token(folder: str) -> str:
    return folder.rpartition("/")[2]


def _filled(script: str, **values: str) -> str:
    return re.sub(r"\b(" + "|".join(values) + r")\b", lambda match: values[match[1]], script)
