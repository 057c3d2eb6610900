"""One rehearsal: prepares, starts Ray and slime's program, watches both, starts the program again, and reports."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl._util.children import how_ended
from agentrl.errors import ConfigError
from agentrl.rehearse.cluster import Guarded, lost_part, start_ray
from agentrl.rehearse.launch import SlimeLaunch
from agentrl.rehearse.packages import Packages
from agentrl.rehearse.packages import prepare as prepare_packages
from agentrl.rehearse.plan import Plan, make_plan
from agentrl.rehearse.prepare import WRITTEN, Prepared, claim, prepare, variables
from agentrl.rehearse.report import (
    GROUPED,
    RehearsalReport,
    continued,
    different_models,
    failed_stage,
    figures,
    log_probs,
    notes,
    problems,
    samples_of,
)
from agentrl.rehearse.stages import EventFiles, Stage, StageWatch, State, expected_stages, first_exception, log_lines
from agentrl.rehearse.standins.events import FOLDER_VARIABLE
from agentrl.rehearse.written import ARGUMENTS
from agentrl.slime.host import plays_ahead

Say = Callable[[str], None]

_TICK_S = 0.3
_WEIGHTS_S = 120.0
ASYNC = "train_async.py"
_PROGRAM, _WEIGHTS, _CHECK = "slime", "weights", "check"


@dataclass(frozen=True, slots=True)
class RehearsalOptions:
    out: Path = Path("rehearsal")
    rollouts: int = 2
    full: bool = False
    timeout_s: float = 180.0
    resume: bool = True


@dataclass(slots=True)
class Rehearsal:
    launch: SlimeLaunch
    options: RehearsalOptions
    say: Say
    show: Callable[[Plan], None]
    """Shows the plan before anything is started."""
    report: RehearsalReport
    data: list[dict[str, Any]] = field(default_factory=list)
    """Events of kind `data` of the first start."""

    @property
    def out(self) -> Path:
        return self.options.out

    @property
    def _is_stale(self) -> bool:
        """Whether episodes are played while the trainer updates the weights."""
        flags = self.launch.flags
        function = flags.text("--rollout-function-path") or None
        return self.launch.program.name == ASYNC or flags.has("--fully-async") or bool(plays_ahead(function))

    def run(self) -> RehearsalReport:
        """Rehearse the launch. Ctrl-C ends it with a report of the stages that were reached. Raises ConfigError."""
        packages = prepare_packages(self.say)
        began = time.monotonic()
        options = self.options
        prepared = prepare(self.launch, self.out, rollouts=options.rollouts, full=options.full)
        plan = make_plan(self.launch, prepared.choices)
        self.report.replacements = plan.replacements
        self.show(plan)
        self.report.problems += prepared.problems
        self.report.notes += [*self.launch.notes, *prepared.notes]
        processes = Guarded()
        try:
            with processes:
                self._play(processes, packages, prepared, plan)
        except KeyboardInterrupt:
            self.report.interrupted = True
        self._judge(prepared, plan)
        self.report.figures["seconds"] = round(time.monotonic() - began, 1)
        self.report.figures["memory_bytes"] = processes.peak_bytes
        (self.out / "report.json").write_text(json.dumps(self.report.to_json(), indent=2) + "\n", encoding="utf-8")
        return self.report

    def _play(self, processes: Guarded, packages: Packages, prepared: Prepared, plan: Plan) -> None:
        """Start everything, and watch the program once or twice."""
        processes.clean(remove=prepared.remove, remove_if_empty=prepared.remove_if_empty)
        env = variables(self.launch, packages, self.out, random=prepared.choices.random)
        env |= plan.variables
        if prepared.weights is not None:
            words = [str(packages.python), "-m", "agentrl.rehearse.model", str(prepared.weights)]
            processes.start(_WEIGHTS, words, env, self.out, self.out / "model.txt")
        if not self._checked(processes, packages, prepared, env):
            return
        cluster = Stage("cluster", State.FAILED)
        self.report.stages = [cluster]
        began = time.monotonic()
        try:
            timeout = self.options.timeout_s
            env = start_ray(processes, packages.python, plan.layout, env, self.out, timeout_s=timeout)
            if prepared.weights is not None:
                self._await_weights(processes)
        except ConfigError as exc:
            cluster.cause = str(exc)
            return
        cluster.state, cluster.seconds, cluster.times = State.OK, time.monotonic() - began, 1
        self._say_stage(cluster)
        evaluates = self.launch.flags.has("--eval-interval")
        watch = StageWatch(expected_stages(evaluates=evaluates, saves=plan.saves, rollouts=self.options.rollouts))
        self.report.log = str(self.out / "log.txt")
        good, stages = self._start(processes, packages, plan.words, env, watch, self.out / "log.txt")
        self.report.stages += stages
        self.data = watch.data
        if good and self.options.resume and plan.saves:
            self._resume(processes, packages, plan, env)

    def _checked(self, processes: Guarded, packages: Packages, prepared: Prepared, env: dict[str, str]) -> bool:
        """Check the launch as it is written, and add the problems to the report. Returns whether slime takes it."""
        folder = self.out / WRITTEN
        folder.mkdir(exist_ok=True)
        words = [str(packages.python), "-m", "agentrl.rehearse.written", str(folder / "problems.txt")]
        words += [str(self.launch.ray_gpus or ""), str(self.launch.program), *prepared.written]
        env = {**env, FOLDER_VARIABLE: str(folder)}  # whose events are not those of the rehearsal
        processes.start(_CHECK, words, env, self.launch.folder, folder / "log.txt")
        _await(processes, _CHECK, self.options.timeout_s)
        watch = StageWatch([ARGUMENTS])
        watch.add(EventFiles(folder).new())
        processes.kill(_CHECK)  # if it has not ended in time
        self.report.problems += log_lines(folder / "problems.txt")
        if watch.errors:
            self.report.stages = watch.failed("", folder / "log.txt")
        elif processes.status(_CHECK) != 0:
            _, cause = first_exception(log_lines(folder / "log.txt"))
            self.report.notes.append(f"the launch as it is written was not checked: {cause or 'no end'}")
        return not watch.errors

    def _await_weights(self, processes: Guarded) -> None:
        _await(processes, _WEIGHTS, _WEIGHTS_S)
        if processes.status(_WEIGHTS) != 0:
            text = (self.out / "model.txt").read_text(encoding="utf-8", errors="replace").strip()
            raise ConfigError(f"no small model of this kind: {text.splitlines()[-1] if text else 'no output'}")

    def _start(
        self,
        processes: Guarded,
        packages: Packages,
        words: Sequence[str],
        env: dict[str, str],
        watch: StageWatch,
        log: Path,
    ) -> tuple[bool, list[Stage]]:
        """Start slime's program and watch it to its end. Returns whether it ended well, and its stages."""
        program = [str(packages.python), str(self.launch.program), *words]
        files = EventFiles(self.out)
        files.new()  # an earlier start's
        try:
            processes.start(_PROGRAM, program, env, self.launch.folder, log)
            status: int | None = None
            while status is None:
                processes.wait(_TICK_S)
                self._take(watch, files)
                status = processes.status(_PROGRAM)
                if status is None and watch.silent_s > self.options.timeout_s:
                    processes.kill(_PROGRAM)
                    return False, watch.failed("", log, timed_out=True, limit_s=self.options.timeout_s)
                if status is None and (lost := lost_part(processes, self.out)):
                    processes.kill(_PROGRAM)
                    return False, watch.failed(f"with {lost}", log)
        except KeyboardInterrupt:
            self._take(watch, files)
            self.report.stages += watch.stages()
            self.data = self.data or watch.data
            raise
        self._take(watch, files)
        processes.sweep()
        if status == 0:
            return True, watch.stages()
        return False, watch.failed(how_ended(status), log)

    def _resume(self, processes: Guarded, packages: Packages, plan: Plan, env: dict[str, str]) -> None:
        """Start the program again from its checkpoint, with one more rollout."""
        watch = StageWatch(expected_stages(evaluates=False, saves=True, rollouts=0))
        began = time.monotonic()
        words = plan.resumed(self.options.rollouts)
        log = self.out / "resume.txt"
        good, stages = self._start(processes, packages, words, env, watch, log)
        self.report.resumed = stages
        resume = Stage("resume", State.OK if good else State.FAILED, time.monotonic() - began, int(good))
        if not good and (line := failed_stage(stages)):
            resume.cause = line
        first = next((turn.rollout for turn in watch.occurrences if turn.stage == "rollout"), None)
        wrong = [*continued(self.data, watch.data, self.options.rollouts, first)]
        if good and (wrong := [*wrong, *different_models(log_probs(watch.data), stale=self._is_stale)]):
            resume.state, resume.cause, resume.place = State.FAILED, "; ".join(wrong), str(log)
        self.report.stages.append(resume)
        self._say_stage(resume)

    def _judge(self, prepared: Prepared, plan: Plan) -> None:
        """Add figures, problems and notes to the report."""
        report, data, random = self.report, self.data, prepared.choices.random
        report.figures = figures(data, samples_of(self.out, data))
        line = failed_stage(report.stages)
        if line and not report.interrupted:
            report.problems.insert(0, line)
        flags = self.launch.flags
        grouped = flags.text("--advantage-estimator", "grpo") in GROUPED and "sft" not in flags.text("--loss-type")
        grouped = grouped and not flags.has("--disable-compute-advantages-and-returns")
        report.problems += problems(report.figures, data, random=random, grouped=grouped, stale=self._is_stale)
        report.notes += notes(report.figures, data, random=random)

    def _take(self, watch: StageWatch, files: EventFiles) -> None:
        """Take in new events, and say which stages have ended for the first time."""
        for occurrence in watch.add(files.new()):
            name = watch.name_of(occurrence)
            if name not in watch.announced:
                watch.announced.add(name)
                state = State.FAILED if occurrence.error else State.OK
                self._say_stage(Stage(name, state, (occurrence.ended or occurrence.began) - occurrence.began))

    def _say_stage(self, stage: Stage) -> None:
        seconds = "" if stage.seconds is None else f"{stage.seconds:.0f} s"
        self.say(f"{stage.state:9} {stage.name:14} {seconds}")


def _await(processes: Guarded, name: str, seconds: float) -> None:
    """Wait until a process ends, but no longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while processes.status(name) is None and not processes.is_lost and time.monotonic() < deadline:
        processes.wait(_TICK_S)


def rehearse(launch: SlimeLaunch, options: RehearsalOptions, say: Say, show: Callable[[Plan], None]) -> RehearsalReport:
    """Rehearse a launch, and write report.json into the folder of the rehearsal. `say` gets a line for each stage that
    ends, `show` the plan before anything starts.

    Raises ConfigError for a launch that cannot be rehearsed, before anything is started.
    """
    options = replace(options, out=options.out.resolve())
    claim(options.out)
    return Rehearsal(launch, options, say, show, RehearsalReport(launch.source)).run()
