"""The configuration of an embedded training run: a class that is read from a YAML file."""

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
from agentrl.train.key_types import Keep, TrackerSettings

Algorithm: TypeAlias = Literal["grpo", "dr_grpo", "gspo", "flash_reinforce"]
Credit: TypeAlias = Literal["episode", "turn", "return"]
KLType: TypeAlias = Literal["k1", "k2", "k3", "low_var_kl"]
OptimizerName: TypeAlias = Literal["adamw", "adamw_8bit"]


class WarmStartConfig(BaseModel):
    """Supervised learning from demonstrations before RL, so that RL can find a reward."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    demonstrations: Path
    """The file of demonstrations, JSONL. A line is a trajectory, as `agentrl play` records it, or chat: {"messages":
    [...], "tools": [...]}. Of chat, only the assistant's tokens are imitated."""
    steps: int = Field(1000, gt=0)
    """The number of optimizer updates. The default for `tiny` is 300."""
    batch_size: int = Field(32, gt=0)
    """The number of demonstrations in a step, for `tiny` 16. The demonstrations are shuffled again in each epoch."""
    learning_rate: float = Field(3e-3, gt=0)
    """The highest learning rate. For models other than `tiny` the default is 1e-5, or 1e-4 with LoRA. The learning rate
    rises linearly over the first 30 steps (over the first third of fewer than 90 steps), then falls along a cosine to a
    twentieth."""
    context_weight: float = Field(0.0, ge=0)
    """The weight of the loss on prompt and observation tokens. 1 teaches a model with random weights to read and
    copy."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """The optimizer. muon: hidden matrices by Muon at five times the learning rate, all other weights by AdamW; for
    models with random weights. adamw: the run's `optimizer`."""


class ColumnsConfig(BaseModel):
    """The columns of a data set that hold a task's fields. Other columns are left out, except `id` and `seed`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    input_key: str = "prompt"
    """The column of the prompt: text, or messages."""
    label_key: str | None = None
    """The column of the label: any value. null: no labels."""
    metadata_key: str | None = None
    """The column of the metadata: an object, or the JSON text of an object. null: no metadata."""
    tool_key: str | None = None
    """The column of the tools: a list, or the JSON text of a list. null: no tools."""


class LoRAConfig(BaseModel):
    """LoRA (arXiv 2106.09685): the model's weights are frozen, and small added matrices are trained."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    rank: int = Field(16, gt=0)
    """The rank: the smaller side of each pair of added matrices."""
    alpha: float = Field(gt=0)
    """The product of the matrices is scaled by alpha / rank. The default is twice the rank."""
    targets: str | list[str] = "all-linear"
    """The adapted layers: all-linear (all linear layers but the head), a list of names such as q_proj, or a regular
    expression."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_alpha(cls, values: Any) -> Any:
        rank = values.get("rank", 16) if isinstance(values, Mapping) else None
        return values if rank is None else {"alpha": 2 * rank if isinstance(rank, int) else 1, **values}


class TeacherConfig(BaseModel):
    """On-policy distillation (thinkingmachines.ai/blog/on-policy-distillation): a teacher scores the sampled tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: str
    """The teacher: a run's folder, a Hugging Face folder, a name on the Hugging Face Hub, or the URL of an SGLang
    server, http://HOST:PORT. The teacher needs the student's tokenizer."""
    weight: float = Field(1.0, gt=0)
    """The factor of the teacher's advantages. The advantage of a sampled token is weight * (teacher's log-prob -
    student's log-prob), an estimate of the negated reverse KL."""
    beside_reward: bool = False
    """true: the advantages of the rewards are added to the teacher's. false: the rewards are reported, and not trained
    on."""

    @property
    def is_served(self) -> bool:
        return self.model.startswith(("http://", "https://"))


class FailureConfig(BaseModel):
    """The fate of episodes whose environment fails. A failed episode has no reward, and does not count in the
    baseline."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    again: int = Field(default=1, ge=0)
    """How many times a failed episode is played again, each time with a fresh Env."""
    wait_s: float = Field(default=0.0, ge=0)
    """The seconds before the first retry. Each further retry waits twice as long as the retry before."""
    least: int = Field(default=0, ge=0)
    """With staleness, the fewest valid episodes of a group. A group with fewer is dropped, and replaced by another
    task."""
    ends_run: bool = False
    """Fail fast: an episode whose retries all fail ends the run."""

    def policy(self) -> FailurePolicy:
        return FailurePolicy(again=self.again, wait_s=self.wait_s, least=self.least, ends_run=self.ends_run)


_ALGORITHM_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "dr_grpo": {"reduction": "constant"},
    "gspo": {"reduction": "sample", "clip_low": 3e-4, "clip_high": 4e-4},
    "flash_reinforce": {"reduction": "sample", "prompts_per_step": 128, "group_size": 1, "minibatches": 1},
}
"""Algorithm -> the settings of the algorithm's paper that differ from GRPO's."""

_TIS_OF_ANOTHER_PROGRAM = 2.0
_TINY_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "limits": {"turns": 8, "max_tokens_per_turn": 64},
    "warm_start": {"steps": 300, "batch_size": 16, "optimizer": "muon", "context_weight": 1.0},
}
"""Settings for `tiny`. With random weights, turns do not end by themselves, and the model must learn to read, too."""


class TrainConfig(EpisodeConfig):
    """An embedded training run: GRPO (arXiv 2402.03300) with clip-higher of DAPO (arXiv 2503.14476), or a related
    algorithm."""

    env: str
    """The Env class: `file.py:Class` or `package.module:Class`."""
    model: str = "tiny"
    """The model: tiny, tiny-vl (reads images), smollm2-135m, a run's folder, a Hugging Face folder, or a name on the
    Hugging Face Hub such as Qwen/Qwen3-0.6B."""
    engine: str = "auto"
    """The engine: auto, local, sglang, or the path of an engine that can take new weights. auto: sglang on a GPU if the
    interpreter has SGLang, else local. A mapping combines the engine (`kind`) with engine_config: `{kind: sglang, url:
    http://127.0.0.1:30000}`."""
    engine_config: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the engine, by name. The local engine takes max_batch and max_context."""
    data: Path | dict[Path, Annotated[float, Field(gt=0)]] | None = None
    """The tasks to train on: a file, JSONL or Parquet; or a folder or hub:org/name:config@split, read by the library
    datasets. Several with weights: {a.jsonl: 3, b.parquet: 1} draws three tasks of a.jsonl for each task of b.parquet.
    More than 64 MB stay on disk. null: the tasks of the Env, if the Env has tasks."""
    columns: ColumnsConfig | None = None
    """The names of the columns of `data`, if these are not the standard names. The keys have the names of slime's
    flags. null: the standard names prompt, label, metadata, tools, id and seed."""
    max_prompt_tokens: int | None = Field(None, gt=0)
    """The longest prompt in tokens of the model's chat template, tools included. Tasks with a longer prompt are left
    out. null: no limit."""
    episodes: int | None = Field(None, gt=0)
    """The number of the Env's own tasks to train on. null: all tasks of a list, 1000 tasks of a generator."""
    eval_data: Path | None = None
    """The file of held-out tasks, JSONL. Without this file, a run on the Env's tasks evaluates on the Env's held-out
    tasks, and a run on `data` on no tasks."""
    out: Path
    """The run folder."""
    seed: int = 0
    """The seed of the order of tasks, of every sampled token, and of random initial weights."""
    steps: int = Field(100, ge=0)
    """The number of RL steps. A step is a rollout and its updates."""
    prompts_per_step: int = Field(16, gt=0)
    """The number of tasks in a step."""
    group_size: int = Field(8, gt=0)
    """The number of episodes of each prompt. The mean reward of these episodes is the baseline. 1 works with
    flash_reinforce, and with a teacher alone."""
    refill: int = Field(0, ge=0)
    """How many times a step replaces the groups of equal rewards, which teach nothing, by groups of fresh tasks: DAPO's
    dynamic sampling (arXiv 2503.14476). 0: never."""
    filters: list[str] = Field(default_factory=list)
    """Functions of yours that select groups, each written like `env`. A function gets the trajectories of a group. The
    function returns True to keep the group, and False or a reason as text to drop it. `refill` replaces dropped
    groups."""
    temperature: float = Field(1.0, gt=0)
    """The temperature of sampling and of the trained log-probs. Evaluations sample greedily."""
    concurrency: int = Field(128, gt=0)
    """The most episodes in flight at once, and the most sequences in the engine's batch. The keys and values of each
    sequence take memory."""
    workers: int = Field(0, ge=0)
    """The number of processes that play the episodes, usually up to the number of free cores. 0: the run's own process
    plays them. See docs/training.md."""
    staleness: int = Field(0, ge=0)
    """The greatest age of a trained token: the number of steps between the sampling of the token and the training on
    the token. 0: rollouts and updates take turns. More: episodes never stop (fully asynchronous, as in AReaL, arXiv
    2505.24298). `concurrency` episodes are in flight while the learner learns, the engine gets new weights in the
    middle of turns, and each step takes the finished groups. The engine needs separate weights: sglang, or local in a
    separate process. tis_clip corrects for the age."""
    stale: Stale = "drop"
    """With staleness, the fate of a group that began too many updates ago for `staleness`. drop: the group is dropped,
    and counted. retry: the task is played once more from the beginning. mask: the group is trained without the tokens
    that are too old."""
    at_once: dict[Phase, Annotated[int, Field(gt=0)]] = Field(default_factory=dict)
    """Phase -> the most episodes in the phase at once, such as `{step: 32}` for a service that takes 32 calls at once.
    The phases: reset (most environments start their sandbox there), step (tools included), and score."""
    failures: FailureConfig = FailureConfig()
    """The fate of episodes whose environment fails."""
    minibatches: int = Field(2, gt=0)
    """The number of optimizer updates in a step."""
    micro_batch_tokens: int = Field(2048, gt=0)
    """The most tokens of a forward and backward pass. Gradients add up over the passes of an update. A pass may always
    have as many tokens as the longest sequence. Episodes that begin alike share the beginning, and nothing is padded. A
    model with layers that do not allow sharing gets padded sequences; a log line says so."""
    gradient_checkpointing: bool | None = None
    """Whether the backward pass computes activations again, so that only one activation of each layer is stored.
    Checkpointing takes a small part of the memory, and a third more time. null: true for models of 100 million
    parameters and more."""
    lora: LoRAConfig | None = None
    """LoRA: train small added matrices (peft) and freeze the weights. Optimizer and gradients take little memory,
    checkpoints are small, and KL's reference is the model without the matrices. `agentrl merge` makes a whole model.
    null: train all weights."""
    optimizer: OptimizerName = "adamw"
    """The optimizer: adamw, or adamw_8bit (bitsandbytes), where the moments of Adam take 2 bytes a parameter instead of
    8."""
    learning_rate: float = Field(3e-4, gt=0)
    """The highest learning rate of RL. The default is for tiny. Other models are pretrained, and get 1e-5. With lora
    the defaults are ten times as high, as is usual (thinkingmachines.ai/blog/lora)."""
    lr_warmup_steps: int = Field(3, ge=0)
    """The number of steps over which the learning rate rises linearly."""
    lr_final: float = Field(0.1, ge=0, le=1)
    """The learning rate of the last step, as a share of the highest learning rate. The learning rate falls linearly."""
    max_grad_norm: float = Field(1.0, gt=0)
    """The largest norm of the gradient. A larger gradient is scaled down to this norm."""
    algorithm: Algorithm = "grpo"
    """The algorithm. grpo: GRPO. dr_grpo (arXiv 2503.20783): no division by the group's standard deviation, reduction
    constant. gspo (arXiv 2507.18071): a single ratio for a sequence, reduction sample, clipped at 3e-4 and 4e-4.
    flash_reinforce: the baseline is the mean reward of the batch, so one episode of a prompt is enough; 128
    prompts_per_step, group_size 1, reduction sample, one update a step (minibatches 1), no division by the standard
    deviation. Values set in the configuration take precedence."""
    reduction: Literal["token", "sample", "constant"] = "token"
    """How the loss is averaged. token: over all tokens of the step (DAPO). sample: over the tokens of each episode,
    then over the episodes, as in the GRPO paper and as slime's default. constant: the sum divided by the number of
    episodes times the longest response (Dr.GRPO)."""
    credit: Credit = "episode"
    """The step rewards that count for a turn. episode: all step rewards. turn: rewards since the turn began, in groups
    whose total rewards differ (MT-GRPO, arXiv 2505.11821, undiscounted). return: rewards since the turn began,
    discounted, compared with the mean of the members that took a turn of the same number."""
    discount: float = Field(1.0, gt=0, le=1)
    """With credit return, the weight of a reward that comes a turn later. A reward two turns later has the square of
    this weight, and so on."""
    eval_opponents: list[str] | None = None
    """The opponents in evaluations. null: the `opponents` except the policy, if any remain."""
    clip_low: float = Field(0.2, gt=0, le=1)
    """The share by which the probability of a token may fall before the token gets no more gradient."""
    clip_high: float = Field(0.28, gt=0)
    """The share by which the probability of a token may rise before the token gets no more gradient (DAPO's
    clip-higher, arXiv 2503.14476)."""
    dual_clip: float | None = Field(None, gt=1)
    """The bound of the ratio for tokens with a negative advantage: a token that has become this many times as likely
    gets no gradient (arXiv 1912.09729). null: no bound."""
    tis_clip: float | None = Field(None, ge=1)
    """The largest weight of truncated importance sampling (TIS). The weight of a token is the trainer's probability
    divided by the engine's, at most this bound. TIS costs a forward pass (fengyao.notion.site/off-policy-rl, which uses
    2). The clipped ratio is then the trainer's new probability divided by the trainer's old: with `staleness`, this is
    AReaL's decoupled objective. null: no TIS, the engine's log-probs are used. The default is 2 with staleness, and
    with engine sglang, which is a different program than the trainer; else null."""
    teacher: TeacherConfig | None = None
    """A model to learn from, with or without the reward. `teacher: runs/teacher` is short for a mapping with the key
    `model`. null: no teacher."""
    mask_overlong: bool = False
    """true: episodes that a limit on tokens or time cut off are not trained (DAPO). The tokens of such episodes count
    as `overlong`."""
    kl_coef: float = Field(0.0, ge=0)
    """The weight of the KL divergence from the weights at the start of RL. 0: no KL is computed."""
    kl_type: KLType = "k3"
    """The estimator of KL, by slime's name (joschu.net/blog/kl-approx.html). low_var_kl is k3, at most 10."""
    numerics: NumericsConfig | None = NumericsConfig()
    """The limits at which the run warns or stops because engine and trainer disagree about log-probs. null: no such
    checks."""
    warm_start: WarmStartConfig | None = None
    """Supervised learning from demonstrations before RL. null: none."""
    eval_every: int = Field(0, ge=0)
    """The number of steps between evaluations. 0: evaluations at the start, after the warm start and at the end
    only."""
    eval_tasks: int = Field(200, gt=0)
    """The most held-out tasks of an evaluation. The first tasks of the set are taken."""
    checkpoint_every: int = Field(50, gt=0)
    """The number of steps between checkpoints."""
    keep: Keep = Keep()
    """The checkpoints and episodes that stay in the run folder: `{last: 2, best: 1, groups: 2}`. last: the newest
    checkpoints. best: the checkpoints of the best evaluations, by the held-out reward; `best` in the run folder is a
    link to the best. groups: the number of groups of a step whose trajectories are written whole, first groups whose
    rewards differ."""
    canaries: CanaryConfig | None = CanaryConfig()
    """The limits at which the run warns or stops early because it cannot be learning. null: no such checks."""
    trackers: TrackerSettings = Field(default_factory=lambda: dict[str, dict[str, Any]](tensorboard={}))
    """The trackers that get the figures and recorded episodes of every step: tensorboard, wandb, trackio, mlflow, or a
    class of yours, written like `env`, with the methods of agentrl.train.Tracker. A name, a list of names, or names
    with settings: {wandb: {project: agents}, mlflow: {tracking_uri: http://127.0.0.1:5000}}."""
    usd_per_hour: float | None = Field(None, gt=0)
    """The price of an hour of this machine, in dollars. The bill at the end then has the cost of the run. null:
    unknown."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """The device of the trainer. auto: CUDA's GPU if there is a GPU, else the CPU. mps: a Mac's GPU, not tested."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The type of the weights, for sampling and training. The optimizer keeps float32 copies."""

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
        """Split `engine: {kind: sglang, ...}` into engine and engine_config. The arguments in the mapping replace a
        separate engine_config."""
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
            raise ValueError(f"group_size 1 has no baseline with {self.algorithm}: take 2 or more, or flash_reinforce")
        return self

    @model_validator(mode="after")
    def _check_draw(self) -> Self:
        if self.refill and self.algorithm == "flash_reinforce":
            raise ValueError("refill is for groups, and algorithm flash_reinforce has none: leave it out, or take grpo")
        if self.filters and not self.refill:
            raise ValueError("filters: refill replaces the groups that they drop, and it is 0: set refill, such as 3")
        if self.refill and not self.learns_from_rewards:
            raise ValueError("refill looks at rewards, and teacher does not: set teacher.beside_reward, or no refill")
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
    def _check_going_back(self) -> Self:
        goes_back = self.canaries is not None and self.canaries.held_out_fall == "go_back"
        if goes_back and not (self.eval_every and self.keep.best):
            raise ValueError("canaries.held_out_fall: go_back needs eval_every (such as 10), and keep.best 1 or more")
        return self

    @model_validator(mode="after")
    def _check_minibatches(self) -> Self:
        episodes = self.prompts_per_step * self.group_size
        if self.minibatches > episodes:
            raise ValueError(f"minibatches ({self.minibatches}) exceeds the {episodes} episodes of a step")
        return self

    @property
    def warm_start_tokens(self) -> int:
        """The most tokens of a pass of the warm start: half of `micro_batch_tokens`, because prompt tokens need logits,
        too."""
        return max(self.micro_batch_tokens // 2, 1)

    @property
    def learns_from_rewards(self) -> bool:
        return self.teacher is None or self.teacher.beside_reward

    @property
    def compares_within_groups(self) -> bool:
        """Whether a group teaches only if its episodes have different rewards."""
        return self.learns_from_rewards and self.algorithm != "flash_reinforce"

    @classmethod
    def make(cls, **values: Any) -> Self:
        """Validate the values. Raises ConfigError with a line for each wrong key."""
        return cls.parse("training configuration", values)

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> Self:
        """Read a YAML file. `overrides` replace the values of the file. Raises ConfigError."""
        return cls.parse(str(path), {**read_yaml(path), **overrides})

    def with_engine(self, engine: str) -> Self:
        """The configuration with this engine in place of `auto`, and with the defaults of this engine. An engine other
        than `auto` stays."""
        if self.engine != "auto":
            return self
        corrected = engine == "sglang" and "tis_clip" not in self.model_fields_set
        tis = {"tis_clip": _TIS_OF_ANOTHER_PROGRAM} if corrected else {}
        return self.model_copy(update={"engine": engine, **tis})

    def to_yaml(self) -> str:
        """The configuration as YAML with all keys. The defaults of the algorithm are left out, so that a different
        algorithm may be set later. A tis_clip that depends on the engine is left out while the engine is `auto`."""
        values, decided = self.model_dump(mode="json"), _ALGORITHM_DEFAULTS.get(self.algorithm, {})
        for key in {key for keys in _ALGORITHM_DEFAULTS.values() for key in keys}:
            if values[key] == decided.get(key, type(self).model_fields[key].default):
                del values[key]
        if self.engine == "auto" and "tis_clip" not in self.model_fields_set:
            del values["tis_clip"]
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
