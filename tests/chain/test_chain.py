"""The example, run as a user runs it: an Env through slime into Megatron-Core and back, a few steps of it.

SLIME_SRC names the root of slime's source; MILES names a folder that holds `megatron.training` (miles-rl), for the test
of slime's own training actor. Each run is a process of its own: Megatron and slime keep much in globals.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentrl.models import save_model, tiny_model, tiny_tokenizer

SOURCE, MILES = os.environ.get("SLIME_SRC", ""), os.environ.get("MILES", "")
NEEDED = ("ray", "httpx", "sympy", "pylatexenc", "tqdm", "PIL", "requests")
STEPS, UPDATES = 3, 2

pytestmark = [
    pytest.mark.skipif(not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source to run these tests"),
    pytest.mark.timeout(300),
]
needs_miles = pytest.mark.skipif(
    not MILES, reason="MILES is not set: give a folder with megatron.training (miles-rl 0.0.2)"
)


@pytest.fixture(scope="module")
def run(example, tmp_path_factory):
    """`run(name, *flags)`: the example's run.py in a folder of that name, and what it leaves there."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"slime needs {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("chain")
    save_model(tiny_model(0), tiny_tokenizer(), folder / "tiny")
    rows = [{"prompt": f"say {number}", "label": "", "metadata": {}} for number in range(8)]
    for name in ("train", "held_out"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def start(name: str, *flags: str, path: str = "") -> Path:
        command = [sys.executable, str(example / "run.py"), "--out", str(folder / name), "--data", str(folder)]
        command += ["--model", str(folder / "tiny"), "--env", f"{Path(__file__).with_name('even_env.py')}:Even"]
        command += ["--steps", str(STEPS), "--prompts", "4", "--group", "8", "--updates", str(UPDATES)]
        command += ["--learning-rate", "3e-3", "--device", "cpu", *flags]
        found = os.pathsep.join(filter(None, [path, *sys.path]))
        environment = {**os.environ, "PYTHONPATH": found, "OMP_WAIT_POLICY": "passive"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return folder / name

    return start


@pytest.fixture(scope="module")
def alone(run):
    """One process, its rollouts recorded."""
    return run("alone", "--record")


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def furthest(one: Path, other: Path) -> float:
    """The largest distance between the weights in two folders."""
    from safetensors.torch import load_file

    ours, theirs = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def test_the_chain_trains(alone):
    steps = metrics(alone)
    assert len(steps) == STEPS
    assert all(len(step["loss"]) == UPDATES and min(step["grad_norm"]) > 1e-3 for step in steps)
    assert furthest(alone / "model", alone.parent / "tiny") > 1e-3


def test_engine_and_trainer_agree_after_each_update(alone):
    steps = metrics(alone)
    assert all(step["compared"] > 100 for step in steps)
    assert max(step["gap_max"] for step in steps) < 1e-4
    assert [step["weight_versions"] for step in steps] == [[str(number)] for number in range(STEPS)]


LOSS, GRAD_NORM, WEIGHTS = 1e-6, 1e-4, 1e-4
"""How far two runs on the same rollouts may be apart: absolute, relative, absolute. Float32 sums in another order."""


def assert_equal_but_for_rounding(name: str, run: Path, other: Path) -> None:
    """And print by how much they differ."""
    pairs = list(zip(metrics(run), metrics(other), strict=True))
    losses = max(abs(a - b) for one, two in pairs for a, b in zip(one["loss"], two["loss"], strict=True))
    norms = max(abs(a / b - 1) for one, two in pairs for a, b in zip(one["grad_norm"], two["grad_norm"], strict=True))
    weights = furthest(run / "model", other / "model")
    print(f"\n{name}: over {len(pairs) * UPDATES} updates, losses differ by at most {losses:.1e} ({LOSS:.0e} allowed),")
    print(f"gradient norms by {norms:.1e} ({GRAD_NORM:.0e}), final weights by {weights:.1e} ({WEIGHTS:.0e})")
    assert [one["compared"] for one, _ in pairs] == [two["compared"] for _, two in pairs]
    assert losses < LOSS
    assert norms < GRAD_NORM
    assert weights < WEIGHTS


def test_two_data_parallel_processes_are_one(run, alone):
    both = run("both", "--replay", str(alone), "--dp", "2")
    assert_equal_but_for_rounding("two data-parallel processes and one", alone, both)


def test_stopped_by_its_seconds_it_goes_on_where_it_was(run, alone):
    """Optimiser, weights and data included: it ends where one that was never stopped does."""
    for done in (1, 2):
        folder = run("stopped", "--replay", str(alone), "--seconds", "0.001")
        assert ([step["step"] for step in metrics(folder)], (folder / "summary.json").exists()) == (
            [*range(done)],
            False,
        )
    run("stopped", "--replay", str(alone))
    assert not (folder / "stopped.pt").exists()
    assert_equal_but_for_rounding("a run stopped twice and one that was not", alone, folder)


BFLOAT16 = (0.05, 0.005)
"""How far engine and trainer may be apart in bfloat16, in one token and on average: it has eight bits of precision."""


@pytest.mark.parametrize("trainer", ["the example's", pytest.param("slime's own", marks=needs_miles)])
def test_bfloat16(run, trainer):
    """The weights that the engine gets are bfloat16, too, so both compute with the same ones."""
    from safetensors.torch import load_file

    flags, path = ((), "") if trainer == "the example's" else (("--slime-train",), MILES)
    folder = run(f"bfloat16 {trainer}", "--dtype", "bfloat16", *flags, path=path)
    steps = metrics(folder)
    print(f"\n{trainer}: max {max(step['gap_max'] for step in steps):.1e}", [step["gap_mean"] for step in steps])
    assert all(step["compared"] > 100 and min(step["grad_norm"]) > 1e-3 for step in steps)
    assert max(step["gap_max"] for step in steps) < BFLOAT16[0]
    assert 1e-6 < max(step["gap_mean"] for step in steps) < BFLOAT16[1]
    assert {str(tensor.dtype) for tensor in load_file(folder / "model/model.safetensors").values()} == {
        "torch.bfloat16"
    }


@needs_miles
@pytest.mark.parametrize("ranks", [1, 2])
def test_slimes_own_training_actor(run, alone, ranks):
    """It does what the example's own steps through the same functions do."""
    actor = run(f"actor{ranks}", "--replay", str(alone), "--slime-train", "--dp", str(ranks), path=MILES)
    assert_equal_but_for_rounding(f"slime's own trainer on {ranks} and the example's on one", alone, actor)
