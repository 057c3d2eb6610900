"""Stages from recorded events and logs: how each ended, and the cause in one line."""

from __future__ import annotations

import json

import pytest

from agentrl.rehearse.stages import (
    SECOND_UPDATE,
    EventFiles,
    StageWatch,
    State,
    expected_stages,
    first_exception,
    innermost,
    log_lines,
)

ALL = expected_stages(evaluates=True, saves=True, rollouts=2)
TRAINERS = (21, 22)


class Recorded:
    """Events of a run, a second apart."""

    def __init__(self):
        self.events, self.time = [], 100.0

    def add(self, stage, event, pid=1, rollout=None, **more):
        self.time += 1.0
        self.events.append({"t": self.time, "pid": pid, "stage": stage, "event": event, "rollout": rollout, **more})
        return self

    def whole(self, stage, *pids, rollout=None):
        for event in ("begin", "end"):
            for pid in pids or (1,):
                self.add(stage, event, pid, rollout)
        return self


@pytest.fixture
def run():
    """The events of a run of one rollout, up to its second weight update."""
    recorded = Recorded()
    for stage in ("arguments", "ray", "placement", "router"):
        recorded.whole(stage)
    recorded.whole("engines", 11, 12).whole("actors", *TRAINERS).whole("weights", *TRAINERS)
    recorded.whole("evaluation", 2, rollout=0).whole("rollout", 2, rollout=0).whole("conversion", 2, rollout=0)
    recorded.whole("training", *TRAINERS, rollout=0).whole("checkpoint", *TRAINERS, rollout=0)
    return recorded.whole("weights", *TRAINERS)


def by_name(stages):
    return {stage.name: stage for stage in stages}


def test_a_run_that_reaches_everything(run):
    watch = StageWatch(ALL)
    watch.add(run.events)
    stages = watch.stages()
    assert [stage.name for stage in stages] == ALL
    assert {stage.state for stage in stages} == {State.OK}
    assert by_name(stages)["training"].seconds == 3.0, "from the first begin to the last end"


def test_the_second_update_is_a_stage_of_its_own(run):
    watch = StageWatch(ALL)
    watch.add(run.events[:-4])
    stages = by_name(watch.stages())
    assert (stages["weights"].state, stages["weights"].times) == (State.OK, 1)
    assert stages[SECOND_UPDATE].state == State.NOT_REACHED
    assert watch.current() == SECOND_UPDATE


def test_a_stage_that_raises_is_named_with_its_first_cause(run, tmp_path):
    log = tmp_path / "log.txt"
    log.write_text(
        "starting\n"
        "\x1b[36m(RolloutManager pid=5)\x1b[0m Traceback (most recent call last):\n"
        "\x1b[36m(RolloutManager pid=5)\x1b[0m ValueError: too many values to unpack (expected 2)\n"
        "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::RolloutManager.generate()\x1b[39m\n"
    )
    run.events = [event for event in run.events if event["stage"] not in ("training", "checkpoint", "conversion")]
    run.add("conversion", "begin", 2, 0).add(
        "conversion", "error", 2, 0, error="ValueError: too many values to unpack (expected 2)"
    )
    run.add(
        "rollout",
        "error",
        1,
        None,
        error="RayTaskError(ValueError): ray::RolloutManager.generate()\nValueError: too many",
    )
    watch = StageWatch(ALL)
    watch.add(run.events)
    stages = by_name(watch.failed("with status 1", log))
    assert stages["conversion"].state == State.FAILED
    assert stages["conversion"].cause == "ValueError: too many values to unpack (expected 2)"
    assert stages["conversion"].place == f"{log}:3"
    assert stages["training"].state == State.NOT_REACHED
    assert stages["rollout"].state == State.OK


def test_an_error_before_the_first_event_is_of_the_first_stage(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("train.py: error: argument --router-policy: invalid choice: 'x'\n")
    stages = StageWatch(ALL).failed("with status 2", log)
    assert stages[0].name == "arguments"
    assert stages[0].state == State.FAILED
    assert "invalid choice" in stages[0].cause
    assert stages[0].place == f"{log}:1"


def test_a_killed_process_is_named_by_the_stage_that_it_left_open(run, tmp_path):
    log = tmp_path / "log.txt"
    log.write_text(
        "Traceback (most recent call last):\n  x\nray.exceptions.ActorDiedError: The actor died unexpectedly\n"
    )
    watch = StageWatch(ALL)
    watch.add([event for event in run.events if event["stage"] not in ("training", "checkpoint")][:-4])
    watch.add([{"t": 200.0, "pid": 21, "stage": "training", "event": "begin", "rollout": 0}])
    stages = by_name(watch.failed("with status 1", log))
    assert stages["training"].state == State.FAILED
    assert stages["training"].cause == "ray.exceptions.ActorDiedError: The actor died unexpectedly"


def test_a_stage_that_hangs_is_timed_out(run, tmp_path):
    watch = StageWatch(ALL)
    events = [event for event in run.events if event["stage"] in ("arguments", "ray")]
    watch.add([*events, {"t": 200.0, "pid": 1, "stage": "placement", "event": "begin", "rollout": None}])
    stages = by_name(watch.failed("", tmp_path / "log.txt", timed_out=True, limit_s=30))
    assert stages["placement"].state == State.TIMED_OUT
    assert "30 s (--timeout)" in stages["placement"].cause


def test_a_failure_without_any_trace_has_the_last_line(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("one\nSegmentation fault\n")
    stages = StageWatch(ALL).failed("by signal SIGSEGV", log)
    assert stages[0].cause == "the program ended by signal SIGSEGV: Segmentation fault"


def test_stages_that_a_launch_lacks_are_not_expected():
    names = expected_stages(evaluates=False, saves=False, rollouts=0)
    assert not {"evaluation", "checkpoint", SECOND_UPDATE} & {*names}


def test_rays_wrapper_is_no_cause():
    error = (
        "RayTaskError(ValueError): \x1b[36mray::RolloutManager.generate()\x1b[39m (pid=5, ip=127.0.0.2)\n"
        '  File "x.py", line 1, in f\n    raise ValueError("x")\nValueError: the reason\n'
    )
    assert innermost(error) == "ValueError: the reason"


def test_the_first_exception_counts_and_warnings_do_not():
    lines = [
        "UserWarning: nothing",
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "FileNotFoundError: [Errno 2] No such file",
        "Traceback (most recent call last):",
        "ray.exceptions.RayTaskError(FileNotFoundError): ray::f()",
    ]
    assert first_exception(lines) == (4, "FileNotFoundError: [Errno 2] No such file")
    assert first_exception(["all is well"]) == (0, "")
    remote = [*lines[-2:], '  File "b.py", line 2, in g', "TypeError: cannot pickle '_thread.lock' object"]
    assert first_exception(remote) == (4, "TypeError: cannot pickle '_thread.lock' object")


def test_a_process_that_died_is_named_so():
    line = "ray.exceptions.ActorUnavailableError: The actor 37a is unavailable: RpcError: Socket closed"
    assert first_exception(["Traceback (most recent call last):", line]) == (2, f"a process of slime died: {line}")


def test_event_files_are_read_as_they_grow(tmp_path):
    files = EventFiles(tmp_path)
    assert files.new() == []
    (tmp_path / "events").mkdir()
    file = tmp_path / "events/5.jsonl"
    line = json.dumps({"t": 2.0, "pid": 5, "stage": "ray", "event": "begin"})
    file.write_text(f"{line}\n{line[:10]}")
    assert len(files.new()) == 1
    with file.open("a") as more:
        more.write(f"{line[10:]}\nno json\n")
    (tmp_path / "events/6.jsonl").write_text(json.dumps({"t": 1.0, "pid": 6, "stage": "ray", "event": "end"}) + "\n")
    assert [event["t"] for event in files.new()] == [1.0, 2.0]
    assert files.new() == []


def test_log_lines_have_no_colours_and_no_names_of_workers(tmp_path):
    (tmp_path / "log").write_text("\x1b[36m(RolloutManager pid=5)\x1b[0m text\nother (x)\n")
    assert log_lines(tmp_path / "log") == ["text", "other (x)"]
    assert log_lines(tmp_path / "missing") == []
