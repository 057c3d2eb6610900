"""--data-source-path agentrl.slime.DataSource: slime's prompts from a buffer that is saved with each checkpoint."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl._util.loading import load_object
from agentrl._util.own_files import check_owner
from agentrl.errors import ConfigError, one_line
from agentrl.rollout.data.stream import PromptLimit, TaskStream
from agentrl.rollout.data.tasks import Columns, TaskFile
from agentrl.rollout.loop.buffer import GroupBuffer, PendingGroup, pop_first
from agentrl.rollout.loop.journal import Journal
from agentrl.slime.host import PART, HostArgs, sample_class
from agentrl.slime.rollouts import flat_samples
from agentrl.slime.task import set_row_id
from agentrl.types import Task

log = logging.getLogger("agentrl")

_UNPLAYED = ("pending", "aborted")
_LIVING: weakref.WeakSet[DataSource] = weakref.WeakSet()


@dataclass(slots=True)
class _HandedOut:
    """A group of samples that slime has got, and has not shipped to the trainer."""

    group: PendingGroup
    since: int
    """The number of rollouts that had been shipped when slime got the group."""
    playing: int = 0
    """The number of the group's samples that `adapt` plays now."""


class DataSource:
    """A data source for slime that knows the untrained prompts. The state of the source is saved with slime's
    checkpoints.

    The data stays on disk, and is read by slime's flags (--prompt-data, --input-key, ...). Groups have slime's numbers.
    A group is shipped when a rollout has given the group to the trainer. `agentrl.slime.log_rollout` and agentrl's
    rollout functions call `shipped` to report such groups. After a restart, groups that the checkpoint's rollouts have
    not shipped are handed out again: groups in flight, groups that waited with their tokens, and groups of later
    rollouts. Without `shipped`, every group that was handed out and not added again counts as trained, as in slime.

    slime's synchronous rollout forgets unshipped groups, so they are handed out again at once. A user's rollout
    function may play ahead. Its behaviour shows this: an episode is played while a rollout is shipped, or a shipped
    group was handed out before the last rollout. Otherwise a group that two consecutive rollouts have not shipped is
    handed out again.

    Raises ConfigError for unreadable data, and for --multimodal-keys.
    """

    def __init__(self, args: Any) -> None:
        self.args, self.flags = args, HostArgs.of(args)
        self._lock = threading.RLock()
        self._size = self.flags.n_samples_per_prompt
        self.dataset = _tasks(self.flags)
        """Row -> the task of the row."""
        stream = TaskStream(self.dataset, self.flags.rollout_seed, shuffle=self.flags.rollout_shuffle)
        self._tokenizer = self._load_tokenizer()
        if self.flags.rollout_max_prompt_len is not None:
            stream.limit_prompts(PromptLimit(self.flags.rollout_max_prompt_len, self._length, log.warning))
        self._buffer = GroupBuffer(
            stream, self._size, policy=self._filter(), args=args, journal=self._open_journal(), keeps_episodes=False
        )
        self._out: dict[int, _HandedOut] = {}
        """Number of a group -> the group, for groups that slime has got and not shipped."""
        self._shipped: dict[int, list[PendingGroup]] = {}
        """Rollout -> the groups shipped by the rollout, until a checkpoint contains their update."""
        self._shipped_in: dict[int, int] = {}
        """Number of a group -> the rollout that shipped the group."""
        self._forgotten: set[int] = set()
        """The numbers of groups that are handed out again because the rollout function seems to have forgotten these
        groups."""
        self._rollouts = 0
        self._plays_ahead = self.flags.plays_ahead
        self._notified = False
        self.metadata: dict[str, Any] = {}
        _LIVING.add(self)

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """`num_samples` groups of samples. Returned groups come first, in the order of --buffer-filter-path, then fresh
        groups."""
        with self._lock:
            taken = [group for group in (self._buffer.take() for _ in range(num_samples)) if group is not None]
            for group in taken:
                self._out[group.number] = _HandedOut(group, self._rollouts)
                group.members = self._samples(group)
            return [list(group.members) for group in taken]

    def add_samples(self, samples: list[list[Any]]) -> None:
        """Take groups back. These groups are handed out again with their present content.

        Raises ConfigError for an incomplete group, and for a group of another data source.
        """
        with self._lock:
            for members in samples:
                if len(members) != self._size:
                    raise ConfigError(
                        f"add_samples: a group has {len(members)} samples, not {self._size}; add it whole"
                    )
                number = _number(members)
                if (entry := self._out.pop(number, None)) is not None:
                    self._buffer.put_back(entry.group, members)
                elif (group := self._waiting_again(number)) is not None:
                    group.members = list(members)
                else:
                    raise ConfigError(
                        f"add_samples: group {number} was not handed out, or was shipped; keep each sample's "
                        "group_index"
                    )

    def shipped(self, rollout_id: int, samples: Any) -> None:
        """Note that a rollout has given these samples to the trainer. A second call for the same rollout is allowed.

        A group that no rollout will ship is handed out again. A group that was played under a dynamic filter is dropped
        as filtered instead. Raises ConfigError for a group that is shipped twice: it would be trained twice.
        """
        with self._lock:
            self._notified = True
            numbers = self._new_numbers(rollout_id, list(flat_samples(samples)))
            entries = [self._out.pop(number) for number in numbers if number in self._out]
            remembered = [group for number in numbers if (group := self._waiting_again(number)) is not None]
            carried_over = remembered or any(entry.since < self._rollouts for entry in entries)
            if self._plays_ahead is None and (carried_over or any(entry.playing for entry in self._out.values())):
                self._plays_ahead = True
            groups = [*(entry.group for entry in entries), *remembered]
            for group in groups:
                self._buffer.finished(group, ())  # slime has the samples
            self._shipped.setdefault(rollout_id, []).extend(groups)
            if numbers:
                self._settle_rest()
                self._rollouts += 1

    def _new_numbers(self, rollout_id: int, samples: Sequence[Any]) -> list[int]:
        """The numbers of the groups that are shipped for the first time. Samples of other data sources do not count."""
        counts = Counter(map(id, samples))
        if (double := next((sample for sample in samples if counts[id(sample)] > 1), None)) is not None:
            raise ConfigError(
                f"rollout {rollout_id} ships sample {double.index} of group {double.group_index} twice; let the "
                "rollout function return each sample once"
            )
        numbers = dict.fromkeys(sample.group_index for sample in samples)
        drawn = [n for n in numbers if n in self._out or n in self._shipped_in or self._waiting_again(n) is not None]
        twice = next((n for n in drawn if self._shipped_in.get(n, rollout_id) != rollout_id), None)
        if twice is not None:
            raise ConfigError(
                f"rollout {rollout_id} ships group {twice} again, which rollout {self._shipped_in[twice]} has shipped, "
                "so it would be trained twice; let the rollout function forget a group that it has returned"
            )
        new = [number for number in drawn if number not in self._shipped_in]
        self._shipped_in.update(dict.fromkeys(new, rollout_id))
        return new

    def _waiting_again(self, number: int) -> PendingGroup | None:
        """The group with this number, if the group waits to be handed out again after being wrongly taken for
        forgotten."""
        if number not in self._forgotten:
            return None
        return next((group for group in self._buffer.waiting if group.number == number), None)

    def drop(self, samples: Any, reason: str) -> None:
        """Drop groups that will not be trained: they are not handed out again. `reason` is a word or two, such as
        "stale"."""
        with self._lock:
            for number in dict.fromkeys(sample.group_index for sample in flat_samples(samples)):
                if (entry := self._out.pop(number, None)) is not None:
                    self._buffer.drop(entry.group, reason)

    def save(self, rollout_id: int | None) -> None:
        """Save the state after this rollout's training, in the folder of slime's checkpoint.

        Raises ConfigError after a failed write; then the files of earlier rollouts stay.
        """
        if self.flags.save is None:
            return
        with self._lock:
            state = self._state_after(rollout_id)
            _write(_file(self.flags.save, rollout_id), pickle.dumps(state))
            self._buffer.saved(state["buffer"])

    def load(self, rollout_id: int | None = None) -> None:
        """Return to the state after this rollout's training. Without a file for the rollout, the state stays.

        Raises ConfigError if other users could have written the file, or if the file is unreadable.
        """
        if self.flags.load is None or not (path := _file(self.flags.load, rollout_id)).exists():
            return
        check_owner(path, str(path))
        try:
            state = pickle.loads(path.read_bytes())
        except Exception as exc:
            raise ConfigError(f"{path}: it cannot be read ({one_line(exc)}); load an earlier checkpoint") from exc
        self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """The present state, for a rollout manager that is restarted."""
        with self._lock:
            return copy.deepcopy(self._state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with self._lock:
            self._out, self._shipped, self._notified = {}, {}, state["told"]
            self._shipped_in, self._forgotten = {}, set()
            self.metadata = state["metadata"]
            self._buffer.restore(state["buffer"])
            for group in self._buffer.waiting:
                if (members := state["samples"].get(group.number)) is not None:
                    group.members = members

    def close(self) -> None:
        """Close the journal, so that another process can save in the folder."""
        if self._buffer.journal is not None:
            self._buffer.journal.close()

    def __len__(self) -> int:
        return len(self.dataset)

    def get_buffer_length(self) -> int:
        """The number of groups that wait to be handed out again."""
        return len(self._buffer.waiting)

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        self.metadata.update(metadata)

    def get_metadata(self) -> dict[str, Any]:
        return self.metadata

    def counts(self) -> dict[str, Any]:
        """The number of groups that are playing, waiting and finished, and the number of dropped groups for each
        reason."""
        with self._lock:
            return {**self._buffer.depths(), **{f"dropped_{why}": n for why, n in self._buffer.dropped.items()}}

    def _state_after(self, rollout_id: int | None) -> dict[str, Any]:
        for rollout in sorted(
            rollout_number for rollout_number in self._shipped if rollout_id is None or rollout_number <= rollout_id
        ):
            self._buffer.trained(rollout, self._shipped.pop(rollout))
        if not self._notified:
            for number in list(self._out):
                group = self._out.pop(number).group
                self._buffer.finished(group, ())
                self._buffer.trained(rollout_id or 0, [group])
        return self._state()

    def _state(self) -> dict[str, Any]:
        samples = {g.number: list(g.members) for g in self._buffer.waiting if any(m is not None for m in g.members)}
        return {"buffer": self._buffer.state(), "samples": samples, "metadata": self.metadata, "told": self._notified}

    def _settle_rest(self) -> None:
        """Take back the groups that the rollout function has forgotten. A group removed by a dynamic filter is
        dropped."""
        if self._plays_ahead:
            return
        is_synchronous = self._plays_ahead is False
        for number, entry in list(self._out.items()):
            if not is_synchronous and (entry.playing or entry.since == self._rollouts):
                continue
            del self._out[number]
            was_played = not any(_status(member) in _UNPLAYED for member in entry.group.members)
            if was_played and self.flags.dynamic_sampling_filter_path:
                self._buffer.drop(entry.group, "filtered")
            else:
                self._forgotten.add(number)
                self._buffer.put_back(entry.group)

    @contextmanager
    def in_play(self, sample: Any) -> Iterator[None]:
        """While the context is open, the sample counts as in play. No lock is taken, because a save may hold the lock
        for long."""
        entry = self._out.get(sample.group_index)
        if entry is not None:
            entry.playing += 1
        try:
            yield
        finally:
            if entry is not None:
                entry.playing -= 1

    def _samples(self, group: PendingGroup) -> list[Any]:
        """The samples of a group. Missing samples are created."""
        prompt = self._prompt(group.task) if any(member is None for member in group.members) else None
        return [
            self._sample(group, index, prompt) if member is None else member
            for index, member in enumerate(group.members)
        ]

    def _sample(self, group: PendingGroup, index: int, prompt: Any) -> Any:
        metadata = copy.deepcopy(dict(group.task.metadata))
        if group.task.tools:
            metadata["tools"] = copy.deepcopy(list(group.task.tools))
        sample = sample_class()(prompt=copy.deepcopy(prompt), label=copy.deepcopy(group.task.label), metadata=metadata)
        sample.group_index, sample.index = group.number, group.number * self._size + index
        set_row_id(sample, group.task.id)
        return sample

    def _filter(self) -> Callable[[Any, int | None, list[Any], int], Sequence[Any]]:
        path = self.flags.buffer_filter_path
        return pop_first if path is None else _on_samples(load_object(path))

    def _open_journal(self) -> Journal | None:
        if self.flags.save is None:
            return None
        path = Path(self.flags.save) / "rollout" / "agentrl_journal.db"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigError(f"--save {self.flags.save}: {exc.strerror}; name a folder that can be written") from exc
        return Journal(path)

    def _load_tokenizer(self) -> Any:
        if self.flags.rollout_max_prompt_len is None and not self.flags.apply_chat_template:
            return None
        from agentrl.models import load_tokenizer

        return load_tokenizer(
            self.flags.hf_checkpoint or "", trust_remote_code=True
        )  # slime runs the tokenizer's code, too

    def _prompt(self, task: Task) -> Any:
        """The prompt as slime's flags want it: unchanged, or rendered to text with --apply-chat-template."""
        return self._rendered(task) if self.flags.apply_chat_template else task.prompt

    def _rendered(self, task: Task) -> str:
        messages = [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else task.prompt
        kwargs = self.flags.apply_chat_template_kwargs or {}
        text: str = self._tokenizer.apply_chat_template(
            messages, tools=list(task.tools) or None, tokenize=False, add_generation_prompt=True, **kwargs
        )
        return text

    def _length(self, task: Task) -> int:
        plain = isinstance(task.prompt, str) and not self.flags.apply_chat_template
        text = task.prompt if plain else self._rendered(task)
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def in_play(args: Any, sample: Any) -> AbstractContextManager[None]:
    """While the context is open, the data source of this process counts the sample as in play."""
    source = next((source for source in _LIVING if source.args is args), None)
    return nullcontext() if source is None or not hasattr(sample, "group_index") else source.in_play(sample)


def note_shipped(args: Any, rollout_id: int, samples: Any) -> None:
    """Tell the data source of this process which samples a rollout has given to the trainer; for slime's hooks."""
    for source in _LIVING:
        if source.args is args:
            source.shipped(rollout_id, samples)


def _tasks(flags: HostArgs) -> TaskFile:
    if flags.multimodal_keys:
        raise ConfigError("agentrl.slime.DataSource reads no images: leave out --multimodal-keys, or the data source")
    if not flags.prompt_data:
        raise ConfigError("agentrl.slime.DataSource needs --prompt-data")
    path, part = flags.prompt_data, slice(None)
    if match := PART.fullmatch(path):
        path = match["path"]
        part = slice(*(int(match[end]) if match[end] else None for end in ("start", "end")))
    columns = Columns(
        input_key=flags.input_key,
        label_key=flags.label_key,
        metadata_key=flags.metadata_key,
        tool_key=flags.tool_key,
    )
    return TaskFile(Path(path), split="train", columns=columns, part=part)


def _file(folder: str, rollout_id: int | None) -> Path:
    return Path(folder) / "rollout" / f"agentrl_data_{rollout_id}.pkl"


def _write(path: Path, data: bytes) -> None:
    """Write the file. After an error the old content stays, if any. Raises ConfigError."""
    unfinished = path.with_suffix(".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # a network file system may report a full disk only here
        unfinished.replace(path)
    except OSError as exc:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise ConfigError(f"{path}: it cannot be written ({exc.strerror}); free some disk, and resume") from exc


def _number(members: Iterable[Any]) -> int:
    number: int = next(flat_samples(list(members))).group_index
    return number


def _status(sample: Any) -> str:
    """The status of a sample, or of the first sample of a list: pending, completed, truncated, aborted or failed."""
    status: str = next(flat_samples(sample)).status.value
    return status


def _on_samples(function: Callable[..., Any]) -> Callable[[Any, int | None, list[Any], int], Sequence[Any]]:
    """Turn slime's filter of lists of samples into a filter for a buffer of groups."""

    def policy(args: Any, rollout_id: int | None, buffer: list[Any], num_samples: int) -> list[Any]:
        groups = {id(group.members): group for group in buffer}
        lists = [group.members for group in buffer]
        taken = function(args, None, lists, num_samples)
        buffer[:] = [groups[id(members)] for members in lists]
        return [groups[id(members)] for members in taken]

    return policy
