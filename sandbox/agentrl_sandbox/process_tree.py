"""Shell code that lists and kills a tree of processes. The code starts no process, as the limit of processes may be
reached."""

from __future__ import annotations

LIST_PROCESSES = r"""
  pairs=
  for file in /proc/[0-9]*/status; do
    pid=${file#/proc/} pid=${pid%/status} state= parent=
    while read -r key value rest; do
      case $key in State:) state=$value ;; PPid:) parent=$value; break ;; esac
    done < "$file"
    case $state in '' | Z | X) ;; *) pairs="$pairs $pid:$parent" ;; esac
  done
"""
"""Sets the variable `pairs`: each live process with its parent."""

ADD_DESCENDANTS = r"""
  more=1
  while [ -n "$more" ]; do
    more=
    for pair in $pairs; do
      case $tree in *" ${pair%:*} "*) continue ;; esac
      case $tree in *" ${pair#*:} "*) tree="$tree${pair%:*} " more=1 ;; esac
    done
  done
"""
"""Adds all descendants, by `pairs`, to the variable `tree`: process ids between spaces, parents before children."""

KILL_CHILDREN_FIRST = r"""
  children_first=
  for pid in $tree; do children_first="$pid $children_first"; done
  kill -KILL $children_first
"""
"""Kills the processes of `tree`, which must be stopped, children first. If a parent in a different process group died
first, the kernel would wake the stopped children with SIGHUP, and their traps could still run."""
