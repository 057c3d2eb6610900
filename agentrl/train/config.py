"""The configuration of an embedded training run: a YAML file, a class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_validator

from agentrl._util.yaml_files import read_yaml
from agentrl.episode.config import EpisodeConfig
from agentrl.episode.phases import Phase
from agentrl.models.hub import SEEDED
from agentrl.monitor.canaries import CanaryConfig
from agentrl.monitor.numerics import NumericsConfig
from agentrl.rollout.loop.group_loop import Stale
from agentrl.rollout.play.failures import FailurePolicy

Algorithm: TypeAlias = Literal["grpo", "dr_grpo", "gspo", "flash_reinforce"]
Credit: TypeAlias = Literal["episode", "turn", "return"]
KLType: TypeAlias = Literal["k1", "k2", "k3", "low_var_kl"]
OptimizerName: TypeAlias = Literal["adamw", "adamw_8bit"]


class WarmStartConfig(BaseModel):
    """Supervised learning from demonstrations before RL, so that RL can find a reward."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    demonstrations: Path
    """JSONL of trajectories, as `agentrl play` records them, or of chat: {"messages": [...], "tools": [...]}, where
    only the assistant's tokens are imitated."""
    steps: int = Field(1000, gt=0)
    """Optimizer updates."""
    batch_size: int = Field(32, gt=0)
    """Demonstrations a step, reshuffled each epoch."""
    learning_rate: float = Field(3e-3, gt=0)
    """The highest rate. For models other than `tiny` the default is 1e-5, or 1e-4 with LoRA. It is reached linearly
    over the first 30 steps, or a third of fewer than 90, then falls along a cosine to a twentieth.
    """
    context_weight: float = Field(0.0, ge=0)
    """Weight of the loss on prompt and observation tokens; 1 teaches a model made from scratch to read and copy."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: hidden matrices by Muon at five times the learning rate, the rest by AdamW. For models from scratch. adamw
    is the run's `optimizer`."""


class ColumnsConfig(BaseModel):
    """The columns of a data set. Other columns are left out, except `id` and `seed`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    input_key: str = "prompt"
    """The prompt: text, or messages."""
    label_key: str | None = None
    """The label: anything."""
    metadata_key: str | None = None
    """An object, or the JSON text of an object."""
    tool_key: str | None = None
    """A list of tools, or the JSON text of a list."""


class LoRAConfig(BaseModel):
    """LoRA (arXiv 2106.09685): the model's weights are frozen, and small added matrices are trained."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    rank: int = Field(16, gt=0)
    """The smaller side of each pair of matrices."""
    alpha: float = Field(gt=0)
    """The product of the matrices is scaled by alpha / rank. The default is twice the rank."""
    targets: str | list[str] = "all-linear"
    """The layers: all-linear (all but head and embeddings), a list of names such as q_proj, or a regular expression."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_alpha(cls, values: Any) -> Any:
        rank = values.get("rank", 16) if isinstance(values, Mapping) else None
        return values if rank is None else {"alpha": 2 * rank if isinstance(rank, int) else 1, **values}


class TeacherConfig(BaseModel):
    """On-policy distillation (thinkingmachines.ai/blog/on-policy-distillation): a teacher scores the sampled tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: str
    """A run's folder, a Hugging Face folder, a name on its Hub, or the URL of an SGLang server, http://HOST:PORT. The
    teacher needs the student's tokenizer."""
    weight: float = Field(1.0, gt=0)
    """Each sampled token's advantage is this times (teacher's log-prob - student's): the reverse KL, negated."""
    beside_reward: bool = False
    """Add the advantages of the rewards. False: the rewards are reported, and not trained on."""

    @property
    def is_served(self) -> bool:
        return self.model.startswith(("http://", "https://"))


class FailureConfig(BaseModel):
    """The fate of episodes whose environment fails. They have no reward, and are not part of the baseline."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    again: int = Field(default=1, ge=0)
    """How often such an episode is played once more, with a fresh Env."""
    wait_s: float = Field(default=0.0, ge=0)
    """Seconds before each retry, doubled each time."""
    least: int = Field(default=0, ge=0)
    """With staleness, groups with fewer valid episodes are dropped, and replaced by other tasks."""
    ends_run: bool = False
    """Fail fast: an episode that fails for good ends the run."""

    def policy(self) -> FailurePolicy:
        return FailurePolicy(again=self.again, wait_s=self.wait_s, least=self.least, ends_run=self.ends_run)


_ALGORITHM_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "dr_grpo": {"reduction": "constant"},
    "gspo": {"reduction": "sample", "clip_low": 3e-4, "clip_high": 4e-4},
    "flash_reinforce": {"reduction": "sample", "prompts_per_step": 128, "group_size": 1, "minibatches": 1},
}
"""Settings of an algorithm's paper that differ from GRPO's."""

_TIS_OF_ANOTHER_PROGRAM = 2.0
_TINY_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "limits": {"turns": 8, "max_tokens_per_turn": 64},
    "warm_start": {"steps": 100, "optimizer": "muon", "context_weight": 1.0},
}
"""Settings for `tiny`: with random weights turns do not end by themselves, and reading must be learned too."""


class TrainConfig(EpisodeConfig):
    """An embedded training run: GRPO (arXiv 2402.03300) with clip-higher of DAPO (arXiv 2503.14476), or a relative."""

    env: str
    """`file.py:Class` or `package.module:Class`."""
    model: str = "tiny"
    """tiny, tiny-vl (reads images), smollm2-135m, a run's folder, a Hugging Face folder, or a name on the Hub such as
    Qwen/Qwen3-0.6B."""
    engine: str = "auto"
    """The engine: auto, local, sglang, or the path of an engine that can take new weights. auto: sglang on a GPU if the
    interpreter has SGLang, else local. A mapping combines the engine (`kind`) with engine_config: `{kind: sglang, url:
    http://127.0.0.1:30000}`."""
    engine_config: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the engine; local takes max_batch and max_context."""
    data: Path | dict[Path, Annotated[float, Field(gt=0)]] | None = None
    """JSONL or Parquet of tasks to train on, or files with weights: {a.jsonl: 3, b.parquet: 1} draws three tasks of the
    first for one of the second. A file of more than 64 MB stays on disk. null: the Env's own tasks, if there are."""
    columns: ColumnsConfig | None = None
    """The columns of data in another form, named as slime's flags are. null: prompt, label, metadata, tools, id and
    seed."""
    max_prompt_tokens: int | None = Field(None, gt=0)
    """Leave out tasks whose prompt is longer, in tokens of the model's template, tools included. null: no limit."""
    episodes: int | None = Field(None, gt=0)
    """How many of the Env's own tasks to train on. null: all of a list, 1000 of a generator."""
    eval_data: Path | None = None
    """JSONL of held-out tasks. Without this file, a run on the Env's tasks evaluates on the Env's held-out tasks, and a
    run on `data` on no tasks."""
    out: Path
    """The run folder."""
    seed: int = 0
    """Fixes the order of tasks, every sampled token, and the weights of a model made from scratch."""
    steps: int = Field(100, ge=0)
    """Steps of RL, each a rollout and updates."""
    prompts_per_step: int = Field(16, gt=0)
    """Tasks played in a step."""
    group_size: int = Field(8, gt=0)
    """Episodes of each prompt; their mean reward is the baseline. 1: flash_reinforce, or a teacher alone."""
    refill: int = Field(0, ge=0)
    """How often a step replaces groups of equal rewards, which teach nothing, by groups of fresh tasks: DAPO's dynamic
    sampling (arXiv 2503.14476). 0: never."""
    filters: list[str] = Field(default_factory=list)
    """Functions of yours, written like `env`. Each gets the trajectories of a group, and returns True to keep the
    group. `refill` replaces the group after False, or the reason as text."""
    temperature: float = Field(1.0, gt=0)
    """Temperature of sampling and of the trained log-probs. Evaluation is greedy."""
    concurrency: int = Field(128, gt=0)
    """Episodes in flight at once, and sequences in the engine's batch. Their keys and values take memory."""
    workers: int = Field(0, ge=0)
    """Processes that play the episodes: 0 for the run's own, or one for each free core. See docs/training.md."""
    staleness: int = Field(0, ge=0)
    """How many steps old the weights may be that sampled a token, when it is trained. 0: rollouts and updates take
    turns. More: episodes never stop (fully asynchronous, as in AReaL, arXiv 2505.24298). `concurrency` episodes are in
    flight while the learner learns, the engine gets new weights in the middle of turns, and each step takes the
    finished groups. The engine needs separate weights: sglang, or local in a separate process. No token is trained at
    a greater age, and tis_clip corrects for the age."""
    stale: Stale = "drop"
    """With staleness, the fate of a group that began too long ago for `staleness`. drop: the group is dropped, and
    counted. retry: the task is played once more from the beginning. mask: the group is trained without the tokens that
    are too old."""
    at_once: dict[Phase, Annotated[int, Field(gt=0)]] = Field(default_factory=dict)
    """The most episodes that may be in a phase at once, such as `{step: 32}` for a service that takes no more. The
    phases: reset (most environments start their sandbox there), step (tools included), and score."""
    failures: FailureConfig = FailureConfig()
    """The fate of episodes whose environment fails."""
    minibatches: int = Field(2, gt=0)
    """Optimizer updates a step."""
    micro_batch_tokens: int = Field(2048, gt=0)
    """Tokens of a forward and backward pass; gradients add up over the passes. A pass may always have as many as the
    longest sequence. Episodes that begin alike share the beginning, and nothing is padded, unless the model has layers
    that do not allow sharing; a line says so."""
    gradient_checkpointing: bool | None = None
    """Store one activation a layer and compute the rest again in the backward pass: a small part of the memory, a third
    more time. null: for models of 100 million parameters and more."""
    lora: LoRAConfig | None = None
    """Train small added matrices (peft) and freeze the weights: little memory for optimizer and gradients, small
    checkpoints, and KL's reference is the model without the matrices. `agentrl merge` makes a whole model. null: train
    all weights."""
    optimizer: OptimizerName = "adamw"
    """adamw_8bit (bitsandbytes): the moments of Adam take 2 bytes a parameter instead of 8."""
    learning_rate: float = Field(3e-4, gt=0)
    """The optimizer's highest learning rate. The default is for tiny; other models were trained before, and get 1e-5.
    With lora both are ten times that, as is usual (thinkingmachines.ai/blog/lora)."""
    lr_warmup_steps: int = Field(3, ge=0)
    """Steps over which the learning rate rises linearly."""
    lr_final: float = Field(0.1, ge=0, le=1)
    """The last step's learning rate as a share of the highest; it falls linearly."""
    max_grad_norm: float = Field(1.0, gt=0)
    """The largest norm of gradients; larger gradients are scaled down."""
    algorithm: Algorithm = "grpo"
    """dr_grpo (arXiv 2503.20783): no division by the group's deviation, reduction constant. gspo (arXiv 2507.18071):
    one ratio a sequence, reduction sample, clipped at 3e-4 and 4e-4. flash_reinforce: the baseline is the mean reward
    of the batch, so one episode of a prompt is enough: 128 prompts_per_step, group_size 1, reduction sample, one update
    a step (minibatches 1), no division by the deviation. Values set in the configuration win."""
    reduction: Literal["token", "sample", "constant"] = "token"
    """How the loss is averaged. token: over all tokens of the step (DAPO). sample: over an episode's tokens, then over
    episodes, as in the GRPO paper and slime's default. constant: divided by episodes times the longest response
    (Dr.GRPO)."""
    credit: Credit = "episode"
    """The step rewards that count for a turn. episode: all. turn: rewards since the turn began, in groups whose totals
    differ (MT-GRPO, arXiv 2505.11821, undiscounted). return: rewards since the turn began, discounted, against the mean
    of the members that took a turn of the same number."""
    discount: float = Field(1.0, gt=0, le=1)
    """With credit return, the weight of a reward one turn earlier; two turns earlier the weight is squared, and so
    on."""
    eval_opponents: list[str] | None = None
    """The opponents in evaluations. null: the `opponents` but the policy, if there are any."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """A token's probability may fall by this share before the gradient ends."""
    clip_high: float = Field(0.28, gt=0)
    """A token's probability may rise by this share (DAPO's clip-higher, arXiv 2503.14476)."""
    dual_clip: float | None = Field(None, gt=1)
    """A bad token that has become this many times as likely gets no gradient (arXiv 1912.09729). null: no bound."""
    tis_clip: float | None = Field(None, ge=1)
    """Truncated importance sampling: weigh each token by the trainer's over the engine's probability, at most by this.
    It costs a forward pass (fengyao.notion.site/off-policy-rl, which uses 2). The clipped ratio is then the new over
    the old trainer's probability: with `staleness`, this is AReaL's decoupled objective. null: trust the engine's
    log-probs. The default is 2 with engine sglang, which is a different program than the trainer, and with staleness;
    else null."""
    teacher: TeacherConfig | None = None
    """A model to learn from, with or without the reward; `teacher: runs/teacher` is short for the key `model`. null:
    none."""
    mask_overlong: bool = False
    """Do not train episodes that a bound on tokens or time cut off (DAPO). The tokens count as `overlong`."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL against the weights at the start of RL; 0 computes none."""
    kl_type: KLType = "k3"
    """The estimator of KL, in slime's names (joschu.net/blog/kl-approx.html). low_var_kl is k3 clamped to 10."""
    numerics: NumericsConfig | None = NumericsConfig()
    """When the run warns or stops because engine and trainer disagree about log-probs. null: never."""
    warm_start: WarmStartConfig | None = None
    """Supervised learning before RL."""
    eval_every: int = Field(0, ge=0)
    """Steps between evaluations; 0: at the start, after the warm start and at the end only."""
    eval_tasks: int = Field(200, gt=0)
    """The number of held-out tasks, the first tasks of the set."""
    checkpoint_every: int = Field(50, gt=0)
    """Steps between checkpoints; the last two are kept."""
    canaries: CanaryConfig | None = CanaryConfig()
    """When the run warns or stops early because it cannot be learning. null: never."""
    wandb: str | None = None
    """A project of Weights & Biases that gets the figures of every step, like TensorBoard, and the whole configuration.
    null: none."""
    usd_per_hour: float | None = Field(None, gt=0)
    """The price of this machine for an hour, in dollars. The bill at the end then names the cost of the run. null:
    unknown."""
    save_groups: int = Field(2, ge=0)
    """Groups of each step whose trajectories are written to the run folder."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights, for sampling and training. The optimizer keeps float32 copies."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_algorithm(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {**_ALGORITHM_DEFAULTS.get(str(values.get("algorithm")), {}), **values}

    @model_validator(mode="before")
    @classmethod
    def _name_teacher(cls, values: dict[str, Any]) -> dict[str, Any]:
        teacher = values.get("teacher")
        return {**values, "teacher": {"model": teacher}} if isinstance(teacher, str) else values

    @model_validator(mode="before")
    @classmethod
    def _split_engine(cls, values: dict[str, Any]) -> dict[str, Any]:
        """`engine: {kind: sglang, ...}` is engine and engine_config together. It wins over a separate engine_config."""
        values, engine = dict(values), values.get("engine")
        if isinstance(engine, Mapping):
            if not isinstance(kind := engine.get("kind", "auto"), str):
                raise ValueError(f"engine: kind must be the name of an engine, such as sglang, not {kind!r:.80}")
            if not isinstance(beside := values.get("engine_config") or {}, Mapping):
                raise ValueError(f"engine_config must be a mapping of keys to values, not {beside!r:.80}")
            settings = {key: value for key, value in engine.items() if key != "kind"}
            values |= {"engine": kind, "engine_config": {**beside, **settings}}
        differs = values.get("engine") == "sglang" or values.get("staleness", 0) != 0
        return {"tis_clip": _TIS_OF_ANOTHER_PROGRAM, **values} if differs else values

    @model_validator(mode="before")
    @classmethod
    def _fill_in_tiny(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("model", "tiny") not in SEEDED:
            return values
        values_given = {key: values.get(key, {} if key == "limits" else None) for key in _TINY_DEFAULTS}
        return {
            **values,
            **{
                key: {**_TINY_DEFAULTS[key], **value}
                for key, value in values_given.items()
                if isinstance(value, Mapping)
            },
        }

    @model_validator(mode="before")
    @classmethod
    def _fill_in_learning_rate(cls, values: dict[str, Any]) -> dict[str, Any]:
        lora, warm = values.get("lora") is not None, values.get("warm_start")
        if values.get("model", "tiny") in SEEDED:
            return {"learning_rate": 3e-3, **values} if lora else values
        rate = 1e-4 if lora else 1e-5
        if isinstance(warm, Mapping):
            values = {**values, "warm_start": {"learning_rate": rate, **warm}}
        return {"learning_rate": rate, **values}

    @model_validator(mode="before")
    @classmethod
    def _fill_in_lora(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("lora") is None or not isinstance(values.get("warm_start"), Mapping):
            return values
        return {**values, "warm_start": {"optimizer": "adamw", **values["warm_start"]}}

    @field_serializer("data")
    def _plain_data(self, data: Path | dict[Path, float] | None) -> Any:
        return {str(path): weight for path, weight in data.items()} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        if self.data == {}:
            raise ValueError("data names no file: name one, or leave it out")
        if self.data is not None and self.episodes is not None:
            raise ValueError("episodes counts the Env's own tasks, and data names a file: leave one out")
        return self

    @model_validator(mode="after")
    def _check_credit(self) -> Self:
        if self.discount != 1 and self.credit != "return":
            raise ValueError(f"discount is of credit return, and credit is {self.credit}: leave it out")
        if self.algorithm == "gspo" and self.credit != "episode":
            raise ValueError("algorithm gspo judges a sequence as a whole: leave out credit, or take grpo")
        return self

    @model_validator(mode="after")
    def _check_group_size(self) -> Self:
        if self.group_size == 1 and self.algorithm != "flash_reinforce" and self.learns_from_rewards:
            raise ValueError(
                f"group_size 1 has no baseline with algorithm {self.algorithm}: take 2 or more, or flash_reinforce"
            )
        return self

    @model_validator(mode="after")
    def _check_draw(self) -> Self:
        if self.refill and self.algorithm == "flash_reinforce":
            raise ValueError("refill is for groups, and algorithm flash_reinforce has none: leave it out, or take grpo")
        if self.filters and not self.refill:
            raise ValueError("filters: refill replaces the groups that they drop, and it is 0: set refill, such as 3")
        if self.refill and not self.learns_from_rewards:
            raise ValueError(
                "refill looks at rewards, and teacher does without: set teacher.beside_reward, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_rollout(self) -> Self:
        for phase, bound in self.at_once.items():
            if bound < self.workers:
                raise ValueError(
                    f"at_once.{phase}: {bound} is divided among {self.workers} workers; give {self.workers} or more"
                )
        if self.failures.least > self.group_size:
            raise ValueError(f"failures.least ({self.failures.least}) exceeds group_size ({self.group_size})")
        return self

    @model_validator(mode="after")
    def _check_teacher(self) -> Self:
        if self.teacher is None:
            return self
        if self.algorithm == "gspo":
            raise ValueError("algorithm gspo judges a sequence as a whole, and a teacher each token: take grpo")
        if self.teacher.is_served and self.temperature != 1:
            raise ValueError("a teacher at a URL scores at temperature 1: set temperature to 1, or name its folder")
        return self

    @model_validator(mode="after")
    def _check_gspo_precision(self) -> Self:
        if self.algorithm == "gspo" and self.dtype == "bfloat16" and self.tis_clip is None:
            raise ValueError("algorithm gspo clips at less than bfloat16 rounds: set tis_clip (2), or dtype float32")
        return self

    @model_validator(mode="after")
    def _check_lora(self) -> Self:
        if self.lora is not None and self.warm_start is not None and self.warm_start.optimizer == "muon":
            raise ValueError("warm_start.optimizer: muon is for whole matrices, not for those of lora: take adamw")
        return self

    @model_validator(mode="after")
    def _check_minibatches(self) -> Self:
        episodes = self.prompts_per_step * self.group_size
        if self.minibatches > episodes:
            raise ValueError(f"minibatches ({self.minibatches}) exceeds the {episodes} episodes of a step")
        return self

    @property
    def warm_start_tokens(self) -> int:
        """Tokens of a pass of the warm start: half of RL's, since prompts have log-probs there, too."""
        return max(self.micro_batch_tokens // 2, 1)

    @property
    def learns_from_rewards(self) -> bool:
        return self.teacher is None or self.teacher.beside_reward

    @property
    def compares_within_groups(self) -> bool:
        """Whether a group needs better and worse episodes to teach anything."""
        return self.learns_from_rewards and self.algorithm != "flash_reinforce"

    @classmethod
    def make(cls, **values: Any) -> Self:
        """Validate. Raises ConfigError with a line that names each wrong key."""
        return cls.parse("training configuration", values)

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> Self:
        """Read a YAML file; `overrides` win. Raises ConfigError."""
        return cls.parse(str(path), {**read_yaml(path), **overrides})

    def with_engine(self, engine: str) -> Self:
        """The configuration with this engine, and its defaults, in place of `auto`. A chosen engine stays."""
        if self.engine != "auto":
            return self
        corrected = engine == "sglang" and "tis_clip" not in self.model_fields_set
        tis = {"tis_clip": _TIS_OF_ANOTHER_PROGRAM} if corrected else {}
        return self.model_copy(update={"engine": engine, **tis})

    def to_yaml(self) -> str:
        """All keys. Defaults of the algorithm are left out, so that a different algorithm may be set later. A tis_clip
        that depends on the engine is left out while the engine is `auto`."""
        values, decided = self.model_dump(mode="json"), _ALGORITHM_DEFAULTS.get(self.algorithm, {})
        for key in {key for keys in _ALGORITHM_DEFAULTS.values() for key in keys}:
            if values[key] == decided.get(key, type(self).model_fields[key].default):
                del values[key]
        if self.engine == "auto" and "tis_clip" not in self.model_fields_set:
            del values["tis_clip"]
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
