"""`agentrl check slime`: each thing that would go wrong, found in the flags, the YAML file, the Env and the data."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentrl._util.findings import Level, Report
from agentrl.cli import app
from agentrl.models import tiny_tokenizer
from agentrl.slime.check import check, read_argument, read_command
from agentrl.slime.check.memory import kv_bytes
from tests.slime.checking import ENVS, GOOD, configure, findings, serious, words
from tests.slime.checking import folder as folder

MODEL = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 2560,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 40960,
}


def only(found: list[tuple[str, str]]) -> tuple[str, str]:
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({"rollout-temperature": 0}, "error", "--rollout-temperature 0: slime divides the logits by it"),
        ({"rollout-temperature": -0.5}, "error", "--rollout-temperature -0.5: "),
        (
            {"advantage-estimator": "rloo"},
            "error",
            "--advantage-estimator rloo: agentrl.slime.post_process_rewards does not know it",
        ),
        (
            {"advantage-estimator": "flash_reinforce", "custom-reward-post-process-path": None},
            "warning",
            "add --custom-reward",
        ),
        (
            {"use-rollout-routing-replay": True, "num-layers": 2},
            "error",
            "remove --use-rollout-routing-replay: the model has no experts",
        ),
        ({"save": None}, "warning", "add --save FOLDER and --save-interval 20"),
    ],
)
def test_what_slime_would_refuse_or_lose(changes, level, said):
    found = only(serious(**changes))
    assert found[0] == level
    assert said in found[1]


def test_flash_reinforce_needs_no_groups():
    assert (
        serious(**{"advantage-estimator": "flash_reinforce", "n-samples-per-prompt": 1, "global-batch-size": 4}) == []
    )


def test_nothing_is_kept_of_a_run_that_only_plays():
    assert serious(save=None, debug_rollout_only=True) == []


def test_one_turn_with_tools():
    configure(limits={"turns": 1})
    level, text = only(serious())
    assert (level, "limits.turns 1 with the tools of Scored: an episode ends at its first call" in text) == (
        "warning",
        True,
    )
    configure(env="my_env.py:Plain", limits={"turns": 1})
    assert serious() == [], "without tools one turn may be all there is"


def test_an_engine_that_slime_does_not_know():
    configure(engine="http://127.0.0.1:30000")
    level, text = only(serious())
    assert level == "error"
    assert "remove `engine: http://127.0.0.1:30000` under `agentrl`: episodes would be sampled there" in text
    assert serious(debug_rollout_only=True) == [], "nothing is trained"
    assert str(check(read_argument(["agentrl.yaml"]))[0].level) == "error", "the YAML file alone"
    router = {"sglang-router-ip": "127.0.0.1", "sglang-router-port": 30000}
    assert serious(**router) == [], "it is slime's router"


CONFIGURED = """
from pydantic import BaseModel
from agentrl import Env


class Config(BaseModel, extra="forbid"):
    corpus: str


class Other(Env):
    config: Config

    def score(self, trajectory) -> float:
        return 1.0
"""


def test_an_env_of_another_data_set_has_keys_of_its_own(folder):
    (folder / "other.py").write_text(CONFIGURED)
    (folder / "held_out.jsonl").write_text('{"prompt": "a", "label": "b", "metadata": {"env": "other.py:Other"}}\n')
    evaluation = {"eval-prompt-data": ["held_out", "held_out.jsonl"], "eval-interval": 1, "save-interval": 1}
    configure(env="other.py:Other", env_config={"corpus": "facts"})
    assert serious(**evaluation) == []
    (folder / "my_env.py").write_text(f"{ENVS}\n\nclass Keyed(Scored):\n    config: dict[str, int]\n")
    configure(env="my_env.py:Keyed", env_config={"k": 3})
    level, text = only(serious(**evaluation))
    assert (level, "it got the env_config of my_env.py:Keyed: give it its own" in text) == ("error", True)
    assert text.endswith("as in `env_configs: {'other.py:Other': {}}`")
    configure(env="my_env.py:Keyed", env_config={"k": 3}, env_configs={"other.py:Other": {"corpus": "facts"}})
    assert serious(**evaluation) == []


def test_a_good_configuration():
    assert serious() == []
    assert not Report(check(read_command([]))).passes()


@pytest.mark.parametrize(
    ("changes", "level", "message"),
    [
        ({"custom_generate_function_path": None}, "error", "add --custom-generate-function-path agentrl.adapt"),
        ({"custom_generate_function_path": "agentrl.adpat"}, "error", "agentrl.adpat: there is no such function"),
        ({"custom_generate_function_path": "mine.generate"}, "warning", "mine.generate is not agentrl.adapt"),
        ({"custom_config_path": "none.yaml"}, "error", "--custom-config-path none.yaml: no such file"),
        ({"custom_config_path": None}, "error", "no environment: put `env: my_env.py:MyEnv` under `agentrl`"),
        ({"custom_reward_post_process_path": None}, "warning", "add --custom-reward-post-process-path agentrl.slime"),
        ({"custom_reward_post_process_path": "agentrl.slime.post"}, "error", "agentrl.slime has no 'post'"),
        ({"router_policy": None}, "warning", "add --router-policy consistent_hashing"),
        ({"router_policy": "cache_aware"}, "warning", "(there are 8)"),
        ({"apply_chat_template": True}, "error", "remove --apply-chat-template: it renders prompts before"),
        ({"multimodal_keys": '{"video": "i"}'}, "error", "remove video from --multimodal-keys"),
        ({"sglang_tool_call_parser": "qwen25"}, "warning", "remove --sglang-tool-call-parser"),
        ({"sglang_reasoning_parser": "qwen3"}, "warning", "remove --sglang-reasoning-parser"),
        ({"rm_type": "math"}, "error", "Scored.score and --rm-type math, which would never be asked"),
        ({"custom_rm_path": "my.rm"}, "error", "two give the reward: Scored.score and --custom-rm-path my.rm"),
        ({"custom_rm_path": "my.rm", "group_rm": True}, "warning", "my.rm replaces the rewards of Scored.score, which"),
        ({"rm_type": "math", "group_rm": True}, "error", "which would replace its rewards"),
        ({"group_rm": True}, "error", "--group-rm takes the reward from Scored.score; remove it, or"),
        ({"n_samples_per_prompt": 1, "global_batch_size": 4}, "error", "a group of one has no advantage"),
        ({"n_samples_per_prompt": None, "global_batch_size": 4}, "error", "--n-samples-per-prompt 1 with"),
        ({"global_batch_size": 64}, "error", "--global-batch-size 64 is more than the 32 episodes"),
        ({"global_batch_size": 20}, "warning", "drops the last 12 of each"),
        ({"rollout_max_response_len": None}, "warning", "SGLang ends each turn after 128 tokens"),
        (
            {"rollout_max_context_len": None, "rollout_max_response_len": 2000},
            "warning",
            "add --rollout-max-context-len",
        ),
        ({"rollout_max_context_len": 400}, "warning", "100 is the whole response here, all turns and results"),
        ({"eval_max_response_len": 80}, "warning", "--eval-max-response-len 80 is the whole response here"),
        ({"rollout_batch_size": 4, "over_sampling_batch_size": 3}, "error", "over-sampling-batch-size 3 is less than"),
        ({"custom_generate_function_path": "agents_of_mine.play"}, "warning", "mine.play is not agentrl.adapt"),
        ({"rollout_max_response_len": 200}, "warning", "leaves no room for the prompt"),
        ({"sglang_context_length": 150}, "error", "200 is more than --sglang-context-length 150"),
        ({"max_tokens_per_gpu": 199}, "warning", "an episode of 200 tokens is more than --max-tokens-per-gpu 199"),
        ({"rollout_top_p": 0.9}, "warning", "--rollout-top-p 0.9: the trainer needs the kept token ids"),
        ({"partial_rollout": True, "mask_offpolicy_in_partial_rollout": True}, "warning", "also masks whole episodes"),
        ({"partial_rollouts": True}, "warning", "--partial-rollouts is no flag of slime's"),
        ({"prompt_data": None}, "error", "add --prompt-data"),
        ({"prompt_data": "none.jsonl"}, "error", "none.jsonl: no such data file"),
        ({"prompt_data": "my_env.py"}, "error", "slime reads .jsonl and .parquet only"),
        ({"input_key": None}, "error", "train.jsonl, row 1: no key 'input' (it has: prompt, label); set --input-key"),
        ({"label_key": "answer"}, "error", "no key 'answer'"),
        ({"label_key": None}, "warning", "has labels, which slime does not read; add --label-key label"),
        ({"eval_interval": 1, "eval_prompt_data": ["held", "none.jsonl"]}, "error", "none.jsonl: no such data file"),
        ({"dynamic_sampling_filter_path": "slime.x.check_reward_nonzero_std"}, "warning", "agentrl.slime.has_spread"),
        ({"dynamic_sampling_filter_path": "agentrl.slime.has_sprad"}, "error", "did you mean has_spread?"),
        ({"rollout_batch_size": "many"}, "error", "--rollout-batch-size many: not a whole number"),
        ({"apply_chat_template_kwargs": "{"}, "error", "--apply-chat-template-kwargs {: not a JSON object"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)  # fmt: skip
def test_flags(changes, level, message, folder):
    if "apply_chat_template_kwargs" in changes:
        tiny_tokenizer().save_pretrained(folder / "model")
        (folder / "model" / "config.json").write_text("{}")
    found = serious(**changes)
    assert any(level == grade and message in text for grade, text in found), found
    assert len(found) == 1


FULLY = {
    "rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async",
    "colocate": None,
    "rollout_num_gpus": 8,
}
HELD_OUT = {"eval_interval": 1, "eval_prompt_data": ["held_out", "train.jsonl"]}
STOCK = "slime.rollout.sglang_rollout.generate_rollout"


def test_a_slime_that_is_not_here_may_be_of_either_kind():
    flags = {**GOOD, **{name.replace("_", "-"): value for name, value in {**FULLY, **HELD_OUT}.items()}}
    found = check(read_command(["train.py", *words({**flags, "eval-function-path": STOCK})]))
    assert [f.message for f in found if f.level in ("error", "warning")] == []
    assert [f.message for f in found if f.check == "fully-async rollout"] == [
        "slime is not here; before 0.4 start train_async.py, and do not evaluate"
    ]


@pytest.mark.parametrize(
    ("program", "changes", "expected"),
    [
        ("train_async.py", {}, []),
        ("slime/train.py", {}, ["fully-async rollout under train.py waits"]),
        ("slime4/train.py", {}, []),
        ("slime4/train.py", HELD_OUT, []),
        ("slime4/train.py", {**HELD_OUT, "eval_function_path": STOCK}, ["remove --eval-function-path slime.rollout"]),
        ("train_async.py", {"colocate": True}, ["remove --colocate"]),
        ("train_async.py", HELD_OUT, ["which cannot evaluate; remove it"]),
        (
            "train_async.py",
            {**HELD_OUT, "eval_function_path": STOCK},
            ["evaluation beside fully-async rollout"],
        ),
    ],
)
def test_fully_async(program, changes, expected, folder):
    """In slime4 there is one program, as in slime 0.4."""
    for name in ("slime/train.py", "slime/train_async.py", "slime4/train.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    flags = {**GOOD, **{k.replace("_", "-"): v for k, v in {**FULLY, **changes}.items()}}
    found = [f.message for f in check(read_command([program, *words(flags)])) if f.level in ("error", "warning")]
    assert len(found) == len(expected), found
    assert all(part in text for part, text in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("setting", "key"),
    [({"thinking": "strip"}, "thinking: strip"), ({"limits": {"compact_at": 500}}, "limits.compact_at")],
)
@pytest.mark.parametrize(
    "name", ["partial_rollout", "group_rm", "rollout_function_path", "dynamic_sampling_filter_path"]
)
def test_fan_out(name, setting, key, folder):
    configure(**setting)
    (folder / "train_async.py").write_text("")  # a slime before 0.4
    path = FULLY["rollout_function_path"]
    value = {"rollout_function_path": path, "dynamic_sampling_filter_path": "slime.x"}.get(name, True)
    flag = name.replace("_", "-")
    flags = {**GOOD, "custom-rm-path": "agentrl.slime.reward", flag: value}
    found = [f.message for f in check(read_command(["train.py", *words(flags)]))]
    assert any(f"`{key}` gives several samples" in text and f"--{flag}" in text for text in found), found


def test_fully_async_rollout_of_slime_0_4_takes_lists():
    configure(thinking="strip")
    found = findings(rollout_function_path=FULLY["rollout_function_path"], colocate=None)
    assert [text for _, text in found if "several samples" in text] == []


def test_fan_out_needs_its_own_baseline():
    configure(thinking="strip")
    assert serious() == []
    assert only(serious(custom_reward_post_process_path=None))[0] == "error"


@pytest.mark.parametrize(
    ("env", "keys", "level", "message"),
    [
        ("Resumable", {}, None, ""),
        ("Replayed", {}, None, ""),
        ("Scored", {}, "note", "stays open for parking.keep_s = 1800 s"),
        (
            "Scored",
            {"parking": {"keep_s": 0}},
            "warning",
            "Scored can neither be restored nor replayed, and parking.keep_s is 0",
        ),
        ("Resumable", {"parking": {"keep_s": 0}}, None, ""),
    ],
)
def test_partial_rollout(env, keys, level, message):
    configure(env=f"my_env.py:{env}", **keys)
    found = [(grade, text) for grade, text in findings(partial_rollout=True) if "aborted episode" in text]
    assert found == [] if level is None else (found[0][0], message in found[0][1]) == (level, True)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"env": "my_env.py:Nobody"}, "my_env.py has no 'Nobody'; it has: "),
        ({"env": "none.py:Env"}, "none.py: no such file"),
        ({"env": "broken.py:Env"}, "broken.py:1: ZeroDivisionError: division by zero"),
        ({"env": None}, "no environment: "),
        ({"limits": {"turn": 3}}, "unknown key limits.turn"),
        ({"parking": {"keep_s": -1}}, "parking.keep_s"),
        ({"envs": "x"}, "unknown key envs; did you mean env?"),
        ({"env": "leaves.py:Env"}, "leaves.py:3: SystemExit: bye"),
        ({"reward": "broken.py:reward"}, "broken.py:1: ZeroDivisionError"),
        ({"reward": "my_env.py:none"}, "my_env.py has no 'none'"),
        ({"reward": "my_env.py:number"}, "reward my_env.py:number is 3, not a function"),
    ],
)
def test_configuration(folder, keys, message):
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "leaves.py").write_text("import sys\n\nsys.exit('bye')\n")
    configure(**keys)
    level, text = only(serious())
    assert (level, message in text) == ("error", True), text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("env: my_env.py:Scored\n", "agentrl.yaml has no key 'agentrl' (it has: env)"),
        ("", "the file is empty; write `agentrl: "),
        ("[1, 2]", "not a mapping"),
        ("a: [", ":1: not YAML: "),
        ("agentrl: 3", "must be a mapping"),
        (b"\xff\xfe\x00", ":1: not UTF-8 text"),
    ],
)
def test_a_bad_yaml_file(folder, content, message):
    (folder / "agentrl.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    level, text = only([(level, text) for level, text in serious() if "agentrl" in text and "row" not in text])
    assert (level, message in text) == ("error", True), text


def test_a_reward_function_owns_the_reward():
    configure(env="my_env.py:Base", reward="my_env.py:reward")
    assert serious() == []
    assert "two give the reward: reward my_env.py:reward and --rm-type math" in only(serious(rm_type="math"))[1]


def test_slimes_reward_model_decides_where_the_env_has_none():
    configure(env="my_env.py:Base")
    assert serious(rm_type="math") == []
    assert serious(custom_rm_path="my.rm", group_rm=True) == []
    assert any("Base writes no score" in text for level, text in findings() if level == "note")


def test_agentrls_own_reward_is_not_foreign():
    assert serious(custom_rm_path="agentrl.slime.reward") == []
    assert serious(custom_rm_path="agentrl.slime.reward", group_rm=True) == []
    held_out = {"eval_interval": 5, "eval_prompt_data": ["held_out", "train.jsonl"]}
    found = serious(custom_rm_path="agentrl.slime.reward", group_rm=True, **held_out)
    assert "--group-rm with --eval-interval" in only(found)[1]


def test_rendered_prompts_are_fine_without_tools():
    configure(env="my_env.py:Plain")
    assert serious(apply_chat_template=True) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "train.jsonl: no row in it"),
        ('{"prompt": "a"', "train.jsonl:1: not JSON"),
        ("[1]\n", "row 1: not an object"),
        (
            '{"prompt": "a", "label": 1}\n{"prompt": 3, "label": 1}\n',
            "row 2: sample.prompt is neither text nor messages",
        ),
        ('{"prompt": "a", "label": 1, "metadata": "x"}\n', "'metadata' is not an object"),
        ('{"prompt": "a", "label": 1, "metadata": {"env": "none.py:E"}}\n', "metadata['env']: none.py: no such file"),
    ],
)
def test_rows(folder, rows, message):
    (folder / "train.jsonl").write_text(rows)
    level, text = only(serious())
    assert (level, message in text) == ("error", True), text


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"reward": "agentrl.rewards:math"}, {}),
        ({"env": "my_env.py:Base"}, {"custom_rm_path": "agentrl.rewards.math"}),
    ],
)
def test_labels_that_the_grader_can_never_pay(folder, settings, flags):
    configure(**settings)
    (folder / "train.jsonl").write_text(
        '{"prompt": "a", "label": "24+48 = 72\\n#### 72"}\n{"prompt": "a", "label": "72"}\n'
    )
    assert serious(**flags) == []
    (folder / "train.jsonl").write_text('{"prompt": "a", "label": "72"}\n{"prompt": "a", "label": ""}\n')
    assert only(serious(**flags)) == (
        "error",
        "train.jsonl, row 2: no answer can match the label '': it is empty; remove the row",
    )


def test_rows_may_name_the_env(folder):
    configure(env=None)
    row = {"prompt": [{"role": "user", "content": "a"}], "label": 1, "metadata": {"env": "my_env.py:Scored"}}
    (folder / "train.jsonl").write_text(json.dumps(row) + "\n")
    assert serious() == []
    assert serious(prompt_data="train.jsonl@[0:1]") == []
    (folder / "train.jsonl").write_text(json.dumps({**row, "metadata": json.dumps(row["metadata"])}) + "\n")
    assert serious() == []


def test_text_that_is_not_utf8(folder):
    (folder / "train.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    assert "not UTF-8 text" in only(serious())[1]


@pytest.fixture
def model(folder) -> Path:
    tiny_tokenizer().save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    return folder / "model"


def test_a_checkpoint_with_a_processor_wants_messages(model, folder):
    assert serious(hf_checkpoint=str(model)) == []
    (model / "preprocessor_config.json").write_text("{}")
    level, text = only(serious(hf_checkpoint=str(model)))
    assert level == "error"
    assert "a processor for images" in text
    assert '"role": "user"' in text
    (folder / "train.jsonl").write_text('{"prompt": [{"role": "user", "content": "a"}], "label": "b"}\n')
    assert serious(hf_checkpoint=str(model)) == []


def test_a_tokenizer_of_python_code_is_not_run(model, folder):
    config = model / "tokenizer_config.json"
    given = {**json.loads(config.read_text()), "tokenizer_class": "Own"}
    config.write_text(json.dumps({**given, "auto_map": {"AutoTokenizer": [None, "own.Own"]}}))
    (model / "own.py").write_text("raise SystemExit('it ran')")
    found = findings(hf_checkpoint=str(model))
    assert any(level == "unchecked" and "its tokenizer is Python code" in text for level, text in found), found


def test_memory(model):
    found = [
        text for level, text in findings(rollout_max_context_len=32768, max_tokens_per_gpu=32768) if level == "note"
    ]
    # 2 x 36 x 8 x 128 x 2 bytes = 144 KiB a token
    assert any("about 4.5 GiB for an episode of 32768 tokens" in text for text in found), found
    assert any(
        "all 32 that may run at once, at full length: 144 GiB, 18 GiB on each of 8 GPUs" in text for text in found
    )
    assert any("about 37 GiB on a GPU for the logits of 32768 tokens" in text for text in found), found
    assert any("the chat template is exact" in text for text in found), found
    assert (
        "more than the model's max_position_embeddings 40960"
        in only(serious(rollout_max_context_len=40961, rollout_max_response_len=30000, max_tokens_per_gpu=50000))[1]
    )


@pytest.mark.parametrize(
    ("config", "cache", "expected"),
    [
        (MODEL, None, 2 * 36 * 8 * 128 * 2),
        (MODEL, "fp8_e4m3", 2 * 36 * 8 * 128),
        ({**MODEL, "layer_types": ["linear_attention"] * 27 + ["full_attention"] * 9}, None, 2 * 9 * 8 * 128 * 2),
        ({**MODEL, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, None, 36 * 576 * 2),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "dtype": "float32"}, None, 1024),
        ({}, None, None),
        ({"num_hidden_layers": 2}, None, None),
    ],
)  # fmt: skip
def test_kv_bytes(config, cache, expected):
    found = kv_bytes(config, cache)
    assert (found and found[0]) == expected


def test_a_template_that_cannot_be_continued(model):
    """Each header holds the number of letters of the message before it, which a bridge does not render."""
    counted = (
        "{% for m in messages %}<|im_start|>{{ m.role }}"
        "{{ loop.previtem.content | length if loop.previtem is defined }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{{ messages[-1].content | length }}\n{% endif %}"
    )
    (model / "chat_template.jinja").write_text(counted)
    assert any(level == "error" and "chat template" in text for level, text in serious()), serious()


@pytest.mark.parametrize("content", ["{", "[]", "\0"])
def test_a_broken_model_folder(model, content):
    (model / "config.json").write_text(content)
    assert any(level == "error" and "config.json" in text for level, text in serious()), serious()


def test_the_yaml_file_alone(folder):
    found = check(read_argument(["agentrl.yaml"]))
    assert {finding.level for finding in found} == {Level.UNCHECKED}
    assert Report(found).summary() == "0 errors, 0 warnings; not checked: the chat template, slime's flags"
    configure(env="none.py:X")
    assert "none.py: no such file" in check(read_argument(["agentrl.yaml"]))[0].message


def test_the_configuration_may_be_named_by_the_environment(folder, monkeypatch):
    (folder / "other.yaml").write_text("env: my_env.py:Scored\n")
    monkeypatch.setenv("AGENTRL_CONFIG", str(folder / "other.yaml"))
    assert serious(custom_config_path=None) == []


def test_keys_of_slimes_in_the_yaml_file_count(folder):
    (folder / "agentrl.yaml").write_text("agentrl: {env: my_env.py:Scored}\nrollout_top_p: 0.5\n")
    assert "--rollout-top-p 0.5" in only(serious())[1]


def test_a_relative_env_on_several_nodes():
    found = [text for _, text in findings(actor_num_nodes=2)]
    assert any("my_env.py is looked for in the folder that Ray runs in" in text for text in found)


def run(*args: Any) -> Any:
    return CliRunner().invoke(app, ["check", "slime", *map(str, args)])


def test_the_command():
    line = ["python3", "train.py", *words(GOOD)]
    done = run("--", *line)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == (
        "0 errors, 0 warnings; not checked: slime's own parser, the chat template, memory"
    )
    done = run("--", *line, "--rm-type", "math", "--group-rm", "--multimodal-keys", '{"a": "b"}', "--rollout-top-p=1.1")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == sorted(
        (line.split()[0] for line in lines[:-1]), key=["error:", "warning:", "unchecked:", "note:"].index
    )
    assert lines[-1].startswith("2 errors, 1 warning; not checked: slime's own parser, ")


def test_this_folder_is_not_where_slime_looks_for_modules(monkeypatch):
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", os.getcwd())])
    run("--", "python3", "train.py")
    assert os.getcwd() not in sys.path


def test_ray_before_the_command():
    line = ["ray", "job", "submit", "--address=http://127.0.0.1:8265", "--", "python3", "train_async.py"]
    done = run("--", *line, *words(GOOD))
    assert "error: remove --colocate: train_async.py" in done.stdout
    assert "stands before the first flag" not in done.stdout


def test_flags_behind_two_dashes():
    done = run("--", "--custom-generate-function-path", "agentrl.adapt", "--custom-config-path", "agentrl.yaml")
    assert done.exit_code == 1
    assert "error: add --prompt-data" in done.stdout


@pytest.mark.parametrize("name", ["run.sh", "my_env.py", "."])
def test_a_script_is_not_read(name):
    done = run(name)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {name}: only bash can read a script; write `agentrl check slime --`")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


SFT = {
    "rollout-function-path": "agentrl.slime.sft.generate_rollout",
    "prompt-data": "chat.jsonl",
    "input-key": "messages",
    "tool-key": "tools",
    "loss-type": "sft_loss",
    "calculate-per-token-loss": True,
    "disable-compute-advantages-and-returns": True,
    "debug-train-only": True,
}


def test_a_supervised_run_needs_neither_an_env_nor_a_configuration():
    assert check(read_command(words(SFT))) == []


@pytest.mark.parametrize(
    ("changes", "level", "text"),
    [
        ({"loss-type": None}, Level.ERROR, "add --loss-type sft_loss"),
        ({"n-samples-per-prompt": 8}, Level.ERROR, "remove --n-samples-per-prompt"),
        ({"apply-chat-template": True}, Level.ERROR, "remove --apply-chat-template"),
        ({"eval-interval": 5}, Level.ERROR, "remove --eval-interval"),
        ({"debug-train-only": None}, Level.WARNING, "starts engines that nobody asks"),
        ({"input-key": None}, Level.WARNING, "add --input-key messages"),
        ({"tool-key": None}, Level.NOTE, "add --tool-key tools"),
    ],
)
def test_what_a_supervised_run_would_get_wrong(changes, level, text):
    [finding] = check(read_command(words({**SFT, **changes})))

    assert finding.level == level
    assert text in finding.message
