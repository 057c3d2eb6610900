"""What reaches train.py, read from a script without running it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.slime.check.flags import Flags
from agentrl.slime.check.launch_file import read_file, read_words

SCRIPT = r"""
#!/usr/bin/env bash
set -ex
HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${HERE}/model.sh"
BATCH=${BATCH:-4}
NAME='it is'   # a comment with a ' in it
EMPTY=
ROLLOUT_ARGS=(
   --prompt-data "${HERE}/train data.jsonl"
   # --apply-chat-template
   --rollout-batch-size ${BATCH}
   --global-batch-size $((BATCH * 2 + 1))
   --rollout-stop "$NAME \"so\"" 'a $b'
   --sglang-cuda-graph-bs 1 $(seq 2 2 6)
   --label-key $EMPTY label
)
ROLLOUT_ARGS+=(--input-key=prompt "")
NOTHING=()
CHECKPOINT="${FP8:-${NAME}-FP8}"
COPY=${NAME}-copy
SPLIT="--group-rm --colocate"
cat > notes.txt <<END
python3 train.py --not-this
END
echo "python3 train.py --nor-this"
export A=1 B="x y"
ray start --head 2>&1 >/dev/null
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="{\"env_vars\": {\"A\": \"${A}\"}}" \
   -- python3 train.py --num-rollout 3 ${SPLIT} --wandb-group $B --save "$CHECKPOINT" --load "$COPY" --log $NAME \
   ${MODEL_ARGS[@]} "${ROLLOUT_ARGS[@]}" "${NOTHING[@]}" --tool-key ${UNSET-un}set --rm-url ${HERE##*/}x
"""
MODEL = 'MODEL_ARGS=(\n   --num-layers 2\n   --rotary-base "${ROTARY:-10000}"\n)\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "model.sh").write_text(MODEL)
    (tmp_path / "run.sh").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCH", raising=False)
    return tmp_path


def written(folder: Path, text: str) -> Path:
    (folder / "some.sh").write_text(text)
    return folder / "some.sh"


def run_by_bash(script: Path, **environment: str) -> list[str]:
    """What bash itself gives to train.py: every command is a function that records its words or does nothing."""
    stand_in = 'import json, sys; print(json.dumps(sys.argv[sys.argv.index("train.py") + 1 :]))'
    ray = f"ray() {{ [[ $1 == start ]] || python3 -c '{stand_in}' \"$@\"; }}; set -- ; source {script}"
    done = subprocess.run(
        ["bash", "-c", ray], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("environment", [{}, {"BATCH": "6", "ROTARY": "7 8"}])
def test_it_reads_what_bash_would_pass(folder, environment, monkeypatch):
    script = folder / "run.sh"
    script.write_text(SCRIPT.replace(" --rm-url ${HERE##*/}x", ""))
    passed = run_by_bash(script, **environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    launch = read_file(script)
    expected = read_words(passed).flags
    assert {name: launch.flags.values(name) for name in launch.flags} == {
        name: expected.values(name) for name in expected
    }
    assert launch.flags.whole("--rollout-batch-size") == int(environment.get("BATCH", 4))
    assert "--apply-chat-template" not in launch.flags
    assert "--not-this" not in launch.flags
    assert launch.findings == []


def test_what_only_a_run_could_tell_is_named(folder):
    launch = read_file(folder / "run.sh")
    assert launch.flags.text("--rm-url") is None
    assert [f.text for f in launch.findings] == [
        "${HERE##*/} is not set here, so --rm-url was not checked; set it as for the script"
    ]


def test_nothing_is_executed(folder):
    read_file(written(folder, "touch made $(touch too) `touch three`\npython train.py --num-rollout $(touch four)\n"))
    assert not {file.name for file in folder.iterdir()} & {"made", "too", "three", "four"}


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("source no/model.sh\npython train.py ${MODEL_ARGS[@]}", "some.sh:1: no/model.sh is not here"),
        (
            "python train.py --num-rollout 3\n   --colocate",
            "some.sh:2: these flags reach no command; end the line before",
        ),
        ("python train.py ${EVAL_ARGS[@]} --num-rollout 3", "arrays that nothing sets: EVAL_ARGS"),
        ("python train.py --hf-checkpoint ${MODEL:?a folder}", "MODEL is not set here, so --hf-checkpoint was not"),
        ("python train.py --colocate\npython train.py", "several commands run train.py"),
        (
            "N=1\nif x; then N=2; fi\npython train.py --num-rollout $N",
            "set under a condition, the last value was taken: N",
        ),
        ("N=1\n[[ x ]] && N=2\npython train.py --num-rollout $N", "set under a condition, the last value was taken: N"),
    ],
)
def test_gaps(folder, text, finding):
    findings = [f.text for f in read_file(written(folder, text)).findings]
    assert any(finding in found for found in findings), findings


def test_a_value_set_under_a_condition_is_taken(folder):
    launch = read_file(written(folder, "if a; then N=2; else N=3; fi\npython train.py --num-rollout $N\n"))
    assert launch.flags.whole("--num-rollout") == 3


@pytest.mark.parametrize(
    "text", ["--num-rollout 3\n--colocate # why\n", "--num-rollout 3 --colocate", "--num-rollout=3 \\\n --colocate"]
)
def test_a_file_of_flags(folder, text):
    launch = read_file(written(folder, text))
    assert launch.flags.whole("--num-rollout") == 3
    assert "--colocate" in launch.flags


def test_words_of_a_command_line():
    launch = read_words(["python", "-u", "slime/train_async.py", "--num-rollout", "3"])
    assert (launch.program, list(launch.flags), launch.flags.stray) == ("train_async.py", ["--num-rollout"], [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; give a launch script"),
        (b"\x7fELF\x02\xff\xfe", "not a readable text file"),
        (b"a\0b", "not a text file"),
        (b"echo hello\n", "no command in it runs train.py or train_async.py"),
        (b"X='never closed\npython train.py\n", "some.sh:1: "),
        (b"ARGS=(\n --colocate\n", "some.sh:1: the array ARGS=( is never closed"),
        (b'python train.py "$(cat <<EOF', "is never closed"),
        (b"$(" * 3000, "nested too deeply"),
    ],
)
def test_rubbish(folder, content, message):
    (folder / "some.sh").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_file(folder / "some.sh")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"), [("none.sh", "no such file"), (".", "is a folder; name the launch script")]
)
def test_no_file(folder, path, message):
    with pytest.raises(ConfigError, match=message):
        read_file(Path(path))


def test_a_script_that_sources_itself_ends(folder):
    read_file(written(folder, "source some.sh\npython train.py --colocate\n"))


def test_flags():
    flags = read_words(["--num-rollout", "1", "--num_rollout", "2", "--eval-top-k", "-1", "--rollout-top-p", "x"]).flags
    assert flags.whole("--num-rollout") == 2
    assert flags.whole("--eval-top-k") == -1
    assert flags.whole("--n-samples-per-prompt") == 1, "slime's default"
    with pytest.raises(ConfigError, match="--rollout-top-p x: not a number"):
        flags.number("--rollout-top-p")


def test_keys_of_the_yaml_file_override_flags():
    flags = Flags([])
    flags.override({"rollout_top_p": 0.9, "partial_rollout": True, "group_rm": False, "mine": 1, "rollout_stop": ["a"]})
    assert flags.number("--rollout-top-p") == 0.9
    assert set(flags) == {"--rollout-top-p", "--partial-rollout", "--rollout-stop"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("--partial-rollouts", "--partial-rollout"),
        ("--custom-generate-function", "--custom-generate-function-path"),
        ("--n-sample-per-prompt", "--n-samples-per-prompt"),
        ("--num-layers", None),
        ("--sglang-server-concurency", None),
        ("--mine", None),
    ],
)
def test_misspelt(name, meant):
    found = dict(read_words([name, "1"]).flags.misspelt())
    assert found == ({name: meant} if meant else {})


SOURCE = os.environ.get("SLIME_SRC", "")


@pytest.mark.skipif(not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source to run these tests")
def test_slimes_own_scripts_are_read(monkeypatch):
    """All of them, with no flag taken for a misspelt one, and none that stands alone."""
    monkeypatch.chdir(SOURCE)
    scripts = [
        file
        for folder in ("scripts", "examples")
        for file in Path(folder).rglob("run*.sh")
        if re.search(r"\btrain(_async)?\.py", file.read_text())
    ]
    assert len(scripts) > 20
    for script in scripts:
        launch = read_file(script)
        assert list(launch.flags.misspelt()) == [], script
        assert launch.flags.stray == [], script
        assert len(list(launch.flags)) > 20 or any("reach no command" in f.text for f in launch.findings), script
