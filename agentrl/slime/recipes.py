"""Settings of published trainings, as changes to what `agentrl slime init` writes. A recipe is one entry of RECIPES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Estimator:
    """The settings of one --advantage-estimator."""

    rollout: Sequence[str] = ()
    train: Sequence[str] = ()
    differs: Sequence[str] = ()
    critic: Mapping[str, str] = field(default_factory=dict)
    """Arguments of the critic that differ from the actor's, by Megatron's name. Empty where there is no critic."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Lines of a script. One with a flag that the script has replaces that flag's line; any other is added."""

    source: str
    """Where the settings are from."""
    env: str
    config: Sequence[str]
    """The YAML lines below `env`."""
    data: str
    """What the folder DATA contains."""
    variables: Sequence[str]
    """Lines of bash after the script's own variables."""
    data_sets: Sequence[str]
    """Lines of bash that make the variables of `evaluation`."""
    rollout: Sequence[str]
    evaluation: Sequence[str]
    train: Sequence[str]
    differs: Sequence[str]
    """Where slime differs, for a comment."""
    estimators: Mapping[str, Estimator]


def changed(lines: Sequence[str], changes: Sequence[str]) -> list[str]:
    """The lines with the changes: each replaces the line with its flag, or is added at the end."""
    found = {line.split()[0]: line for line in lines}
    return [*(found | {change.split()[0]: change for change in changes}).values()]


_SEARCH_R1 = Recipe(
    source="Search-R1: arXiv 2503.09516, and scripts/nq_hotpotqa/v0.2 of its code where the paper is silent",
    env="agentrl_envs.search_r1:SearchR1",
    config=(
        "env_config:",
        "  retriever: http://127.0.0.1:8000/retrieve   # `agentrl retriever serve CORPUS`, or Search-R1's own server",
        "  topk: 3",
        "  response_tokens: 500   # of a turn",
        "  forced_answer: true   # after the turns, one in which nothing is searched",
        "limits:",
        "  turns: 4   # the paper's; Search-R1's train_grpo.sh and train_ppo.sh have 2",
        "  observation_tokens: 500",
    ),
    data="train.parquet and test.parquet, as Search-R1 publishes them",
    variables=('TRAIN="${TRAIN:-${DATA}/train.parquet}"   # or .jsonl, of the same rows',),
    data_sets=(
        'TEST="${TEST:-${DATA}/test.parquet}"',
        "# Each data_source of the test rows is a data set of its own: NAME FILE@[FIRST:END].",
        'SLICES="$(agentrl slime slices "${TEST}" --by data_source)"',
        'mapfile -t EVAL_DATA <<< "${SLICES}"',
    ),
    rollout=(
        '--prompt-data "${TRAIN}"',
        "--label-key reward_model",
        "--metadata-key extra_info   # the split and the index",
        "--num-rollout 500",
        "--rollout-batch-size 512",
        "--global-batch-size 256   # episodes, not prompts",
        "--rollout-max-response-len 4096   # the whole response of an episode, observations included",
        "--rollout-max-context-len 4596   # 4096 before the last turn, and its 500",
        "--rollout-top-p 1   # the paper's; the scripts for GRPO leave verl's 0.95",
    ),
    evaluation=(
        "--eval-interval 100",
        '--eval-prompt-data "${EVAL_DATA[@]}"',
        "--eval-temperature 0",
    ),
    train=(
        "--save-interval 100",
        "--use-kl-loss",
        "--kl-loss-coef 0.001",
        "--kl-loss-type low_var_kl",
        "--entropy-coef 0.001   # verl's default",
        "--eps-clip 0.2   # verl's default",
        "--eps-clip-high 0.2",
        "--weight-decay 0.01   # verl's default",
        "--adam-beta2 0.999   # verl's default",
        "--lr 1e-6",
        "--lr-warmup-fraction 0.285",
    ),
    differs=(
        "An episode that outgrows its context ends, and is scored. Search-R1's code drops the start of the prompt.",
        "The loss is the mean over an episode's tokens, then over episodes, as in the paper. Search-R1's code takes",
        "one mean over all tokens of a micro-batch.",
        "The learning rate rises with each update, in Search-R1's code with each batch of prompts, for the same share",
        "of the run.",
        "Base models and instruct models get the same settings and their own chat template, as in Search-R1's code.",
    ),
    estimators={
        "grpo": Estimator(rollout=("--n-samples-per-prompt 5",)),
        "ppo": Estimator(
            rollout=("--n-samples-per-prompt 1",),
            train=("--normalize-advantages   # verl's default", "--value-clip 0.5   # verl's default"),
            differs=(
                "The KL divergence is part of the loss, as under GRPO. In Search-R1's PPO it is part of the reward,",
                "less that of the passages. slime's --kl-coef would count the passages too.",
                "The critic trains on the actor's GPUs, in turn with it. The other waits in the CPU's memory.",
            ),
            critic={"lr": "1.0e-5", "lr_warmup_fraction": "0.015"},
        ),
    },
)

RECIPES: Mapping[str, Recipe] = {"search-r1": _SEARCH_R1}
