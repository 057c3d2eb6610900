"""Check the tasks that an Env generates: they must be equal each time, and differ between train and eval."""

from __future__ import annotations

from agentrl.check.playing import EnvUnderTest
from agentrl.check.state import picture
from agentrl.check.undetermined import undetermined_calls
from agentrl.errors import ConfigError
from agentrl.rollout.data.own_tasks import Split, makes_tasks
from agentrl.rollout.data.own_tasks import own_tasks as made_by

_CHECK = "tasks"
_MOST = 20
_SPLITS: tuple[Split, ...] = ("train", "train", "eval")


def own_tasks(subject: EnvUnderTest) -> None:
    """Report mistakes in `Env.tasks`."""
    if not makes_tasks(subject.cls):
        return
    place = subject.author.of_member("tasks")
    try:
        train, again, held_out = (
            [_seen(subject, task) for task in made_by(subject.envs, split, most=_MOST)] for split in _SPLITS
        )
    except ConfigError as exc:
        subject.report.error(_CHECK, place, str(exc), "fix tasks")
        return
    if train != again:
        calls = undetermined_calls(subject.author)
        message = "tasks gives different tasks each time it is called"
        subject.report.error(
            _CHECK,
            calls[0][0] if calls else place,
            message,
            "make them by random.Random(split): a run must be repeatable",
        )
    elif train and train == held_out:
        subject.report.error(
            _CHECK, place, "tasks gives the same tasks for train and for eval", "make them depend on `split`"
        )
    subject.report.checked[_CHECK] = f"the first {len(train)} of each split"


def _seen(subject: EnvUnderTest, task: object) -> object:
    fields = ("prompt", "label", "metadata", "tools", "seed")
    return [picture(getattr(task, name, None), subject.author) for name in fields]
