"""`make gpu` without its training: what is to be done, what is refused, and what becomes of the figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import gpu

pytest.importorskip("torch", reason="benchmarks.gpu asks torch for the device")

SETTINGS = gpu.Settings("cpu", "tiny", None)
FINISHED, UNFINISHED = {"status": "finished", "result": {"curve": [0.0, 1.0]}}, {"status": "unfinished", "why": "time"}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """`command(*flags, name=what, ...)`: main() where each part answers what is said here; its status, and who ran."""
    ran = []

    def run(*flags, **answers):
        ran.clear()

        def answer(name, folder, settings, seconds, given):
            ran.append(name)
            return answers.get(name.replace("-", "_"), FINISHED)

        monkeypatch.setattr(gpu, "run_part", answer)
        files = ["--out", str(tmp_path / "out"), "--results", str(tmp_path / "results.json")]
        return gpu.main(["--device", "cpu", *files, *flags]), list(ran)

    return run


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_all_parts_in_their_order(command, tmp_path):
    assert command() == (0, ["learner", "engine", "demo", "search-full", "search-lora", "megatron"])
    assert [part["status"] for part in results(tmp_path)["parts"].values()] == ["finished"] * 6


def test_it_goes_on_with_what_is_not_finished(command, tmp_path):
    assert command(search_full=UNFINISHED) == (gpu.UNFINISHED, list(gpu.PARTS))
    assert results(tmp_path)["parts"]["search-full"] == UNFINISHED
    assert command() == (0, ["search-full"])
    assert command() == (0, [])


def test_one_part_alone_leaves_the_others_as_they_are(command, tmp_path):
    assert command("--part", "megatron") == (0, ["megatron"])
    assert results(tmp_path)["parts"]["demo"] == {"status": "not run", "why": "not asked for"}
    assert command("--part", "demo") == (0, ["demo"])
    assert [name for name, part in results(tmp_path)["parts"].items() if part == FINISHED] == ["demo", "megatron"]


def test_seeds_are_parts_of_the_searches(command, tmp_path):
    ran = ["demo", "search-full", "search-full-seed-1", "search-full-seed-2"]
    assert command("--part", "search-full", "demo", "--seeds", "3") == (0, ran)
    assert command("--part", "search-full", "--seeds", "4") == (0, ["search-full-seed-3"])
    assert results(tmp_path)["parts"]["search-full-seed-2"] == FINISHED


def test_a_failed_part_does_not_end_the_others(command):
    assert command(demo={"status": "failed", "why": "exit status 1"}) == (1, list(gpu.PARTS))
    assert command() == (0, ["demo"])


def test_a_part_that_cannot_run_is_asked_again(command):
    assert command(megatron={"status": "not run", "why": "SLIME_SRC is not set"})[0] == 0
    assert command() == (0, ["megatron"])


def test_results_say_where_they_are_from_but_no_path(tmp_path):
    state = gpu.State(gpu.Settings("cuda", "smollm2-135m", "/somewhere/data"), {"demo": FINISHED})
    found = gpu.merged(state, {"machine": "NVIDIA H200", "torch": "2.13.0"})
    assert (found["machine"], found["ran_on_a_gpu"], found["small"]) == ("NVIDIA H200", True, False)
    assert "/somewhere" not in json.dumps(found)
    assert found["data"] == "given"


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (gpu.Settings("cuda", "tiny", None), "device cpu, not cuda"),
        (gpu.Settings("cpu", "smollm2-135m", None), "model tiny, not smollm2-135m"),
        (gpu.Settings("cpu", "tiny", "/data"), "data None, not /data"),
    ],
)
def test_figures_of_two_kinds_are_not_mixed(tmp_path, now, said):
    gpu.State(SETTINGS, {"demo": FINISHED}).write(tmp_path)
    assert gpu.State.read(tmp_path, SETTINGS).parts == {"demo": FINISHED}
    with pytest.raises(ValueError, match=said):
        gpu.State.read(tmp_path, now)


def test_of_another_kind_the_command_says_so(command, capsys):
    command()
    assert command("--model", "smollm2-135m")[0] == 2
    assert "choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--data", "nowhere"], "--data nowhere: no corpus.jsonl in it"),
        (["--seeds", "0"], "--seeds 0: give 1 or more"),
        (["--seconds", "0"], "--seconds 0: give a time in which something can be done"),
        (["--part", "training"], "invalid choice: 'training'"),
        (["--device", "cuda"], "--device cuda: torch sees no GPU"),
    ],
)
def test_bad_input_is_refused_in_one_line(flags, said, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as exited:
        gpu.main(flags)
    assert exited.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_gpu_is_taken_where_there_is_one_and_names_the_results(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    args, settings = gpu.parse([])
    assert settings == gpu.Settings("cuda", "smollm2-135m", None)
    assert (args.out.name, args.results.name) == ("gpu-cuda", "gpu_nvidia_h200.json")


def test_a_part_that_dies_has_failed(tmp_path, monkeypatch):
    def dies(command, **_):
        return gpu.subprocess.CompletedProcess(command, -9)

    monkeypatch.setattr(gpu.subprocess, "run", dies)
    (tmp_path / "said.json").write_text(json.dumps(FINISHED))  # of an earlier call
    found = gpu.run_part("demo", tmp_path, SETTINGS, 1, gpu.Given())
    assert found == {"status": "failed", "why": "exit status -9; its output says more"}


@pytest.mark.parametrize(
    ("part", "program"), [("learner", "gpu_speed"), ("engine", "gpu_speed"), ("demo", "gpu_parts")]
)
def test_a_part_gets_what_was_given_by_its_program(tmp_path, monkeypatch, part, program):
    commands = []

    def runs(command, **_):
        commands.append(command)
        return gpu.subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(gpu.subprocess, "run", runs)
    gpu.run_part(part, tmp_path, SETTINGS, 1, gpu.Given(peak_tflops=989.0, sglang="python-of-sglang"))
    (command,) = commands
    job = json.loads(command[-1])
    assert command[2] == f"benchmarks.{program}"
    assert (job["part"], job["peak_tflops"], job["sglang"]) == (part, 989.0, "python-of-sglang")


def test_rows_are_a_table_and_reasons_follow(capsys):
    rows = [{"by": "agentrl", "tokens_per_s": 17}, {"by": "TRL", "why": "not installed"}]
    gpu.say("learner", {"status": "finished", "result": {"budget": 8, "table": rows}})
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["learner: finished", "  budget: 8"]
    assert lines[2].split("┃") == [" by      ", " tokens per s "]
    assert lines[4].split() == ["agentrl", "│", "17"]
    assert lines[-1] == "  TRL: not installed"


def test_committed_results_are_of_this_form():
    for file in Path(gpu.RESULTS).glob("gpu_*.json"):
        found = json.loads(file.read_text())
        assert found["machine"]
        parts = list(found["parts"])
        assert parts[: len(gpu.PARTS)] == list(gpu.PARTS)
        assert all(re.fullmatch(r"search-(full|lora)-seed-\d+", name) for name in parts[len(gpu.PARTS) :])
