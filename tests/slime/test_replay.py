"""What slime's trainer replays: by hand, and beside slime's own bookkeeping (SLIME_SRC, see contract/hosts.py)."""

from __future__ import annotations

import base64
import json
import random
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from agentrl.engine import Generation
from agentrl.errors import ConfigError
from agentrl.models import save_model, tiny_model, tiny_tokenizer
from agentrl.render import Rendered, RenderedSpan
from agentrl.slime.host import HostArgs
from agentrl.slime.replay import (
    IncrementalExperts,
    check_flags,
    forget_old_experts,
    request_fields,
    write_replay_data,
)
from agentrl.slime.sample import to_sample, to_samples
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Action, StopReason
from tests.slime.conftest import Sample as Base
from tests.slime.contract import hosts
from tests.slime.contract.conftest import starting

np = pytest.importorskip("numpy", reason="what is replayed comes in arrays")
torch = pytest.importorskip("torch", reason="slime's samples hold tensors")

LAYERS, TOPK, EXPERTS = 3, 2, 8
TOP_P = SimpleNamespace(rollout_top_p=0.9)
R3 = SimpleNamespace(use_rollout_routing_replay=True, num_layers=LAYERS, moe_router_topk=TOPK, num_experts=EXPERTS)
BOTH = SimpleNamespace(**vars(TOP_P), **vars(R3))
TOP_P_KEYS = ("top_p_token_ids", "top_p_token_offsets")
HEAD = 4
CENTRING = SimpleNamespace(use_score_centering=True, score_centering_top_k=HEAD, rollout_top_p=1.0)


@dataclass
class Sample(Base):
    """With the fields that slime's has for a replay."""

    rollout_id: int | None = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    rollout_routed_experts: Any = None
    rollout_topk_token_ids: Any = None
    rollout_topk_log_probs: Any = None

    def append_response_tokens(self) -> None:
        """Its presence tells slime from its relatives."""


def decode(tokens):
    return " ".join(map(str, tokens))


def packed(numbers, kind=np.int32) -> str:
    """As SGLang and slime's patch of it send them."""
    return base64.b64encode(np.asarray(numbers, kind).tobytes()).decode()


class Conversation:
    """A trajectory, and the requests behind it: `requests` holds (tokens, meta), or (tokens, None) where none was."""

    def __init__(self, seed: int = 0, *, encode: Any = packed, partial: bool = False) -> None:
        self.random, self.encode, self.partial = random.Random(seed), encode, partial
        self.trajectory = Trajectory(session_id="s")
        self.trajectory.append_prompt(Rendered((1, 2), (RenderedSpan("prompt", 0, 2),)))
        self.trajectory.stop = StopReason.DONE
        self.requests: list[tuple[list[int], dict[str, Any] | None]] = []
        self.routed = 0  # rows that earlier requests have brought

    def sample(self, count: int, finish: str = "stop", *, kept: int | None = None, **meta: Any) -> None:
        """A request that samples so many tokens, of which the episode keeps `kept`."""
        tokens = [self.random.randrange(100) for _ in range(count)]
        nuclei = [[self.random.randrange(100) for _ in range(self.random.randrange(1, 4))] for _ in tokens]
        ends = [sum(map(len, nuclei[:i])) for i in range(count + 1)]
        start = self.routed if self.partial else 0
        rows = len(self.trajectory.tokens) + count - 1 - start
        known: dict[str, Any] = {"finish_reason": {"type": finish}, "prompt_tokens": len(self.trajectory.tokens)}
        if count:
            known |= {
                "completion_tokens": count,
                "top_p_token_ids": self.encode([token for nucleus in nuclei for token in nucleus]),
                "top_p_token_offsets": self.encode(ends),
                "routed_experts": self.encode(
                    [e for _ in range(rows * LAYERS) for e in self.random.sample(range(EXPERTS), TOPK)]
                ),
            }
            heads = [self.random.sample(range(100), HEAD) for _ in tokens]
            known |= {
                "output_topk_token_ids": packed(heads),
                "output_topk_log_probs": packed([[-0.5 * (i + 1) for i in range(HEAD)] for _ in tokens], np.float32),
                "output_topk_shape": [count, HEAD],
            }
            if self.partial:
                known["routed_experts_start_len"] = start
            self.routed = rows + start
        known = {key: value for key, value in {**known, **meta}.items() if value is not None}
        tokens = tokens[:kept]
        self.requests.append((tokens, known))
        self.trajectory.append_model(Generation(tokens, [-1.0] * len(tokens), finish, meta=known))

    def observe(self, *tokens: int) -> None:
        self.trajectory.append_action(Action("", ""))
        spans = (RenderedSpan("observation", 0, 1), RenderedSpan("prompt", 1, len(tokens)))
        self.trajectory.append_observation(Rendered(tokens, spans))
        self.requests.append((list(tokens), None))

    def three_turns(self) -> Trajectory:
        """The second turn is aborted and goes on; the third is aborted before its first token."""
        self.sample(3)
        self.observe(11, 12, 13)
        self.sample(2, "abort")
        self.sample(4)
        self.observe(14, 15)
        self.sample(0, "abort")
        self.sample(2)
        self.trajectory.append_action(Action("", ""))
        return self.trajectory


def filled(args: Any, trajectory: Trajectory) -> Any:
    sample = to_sample(trajectory, Sample(), decode=decode)
    write_replay_data(args, sample, trajectory.segment)
    return sample


# By hand


def test_nuclei_of_sampled_tokens_and_of_no_others():
    play = Conversation()
    play.sample(2, top_p_token_ids=packed([7, 8, 9]), top_p_token_offsets=packed([0, 1, 3]))
    play.observe(11, 12)
    play.sample(1, top_p_token_ids=packed([5, 6]), top_p_token_offsets=packed([0, 2]))
    sample = filled(TOP_P, play.trajectory)
    assert sample.rollout_top_p_token_ids.tolist() == [7, 8, 9, 5, 6]
    assert sample.rollout_top_p_token_offsets.tolist() == [0, 1, 3, 3, 3, 5]
    assert sample.rollout_top_p_token_ids.dtype == sample.rollout_top_p_token_offsets.dtype == torch.int32
    assert sample.rollout_routed_experts is None, "nobody asked for them"


def test_the_last_request_tells_the_experts_of_all_tokens():
    play = Conversation()
    play.three_turns()
    del play.requests[0][1]["routed_experts"]  # what is told again need not be there
    sample = filled(R3, play.trajectory)
    last = play.requests[-1][1]["routed_experts"]
    assert packed(sample.rollout_routed_experts.reshape(-1)) == last
    assert sample.rollout_routed_experts.shape == (len(sample.tokens) - 1, LAYERS, TOPK)
    assert sample.rollout_top_p_token_ids is None


def test_what_the_engine_never_read_gets_slimes_padding():
    play = Conversation()
    play.sample(2)
    play.observe(11, 12, 13)
    sample = filled(BOTH, play.trajectory)
    assert packed(sample.rollout_routed_experts[:3].reshape(-1)) == play.requests[0][1]["routed_experts"]
    padding = sample.rollout_routed_experts[3:].reshape(-1).tolist()
    assert padding == [i % EXPERTS for i in range(3 * LAYERS * TOPK)]
    assert sample.rollout_top_p_token_offsets.tolist()[3:] == [len(sample.rollout_top_p_token_ids)] * 3


def test_a_generation_that_was_cut_at_its_stop_string():
    """An abort splits a stop string, so the episode cuts what comes behind it; `meta` speaks of all tokens."""
    play = Conversation()
    play.sample(2, "abort", top_p_token_ids=packed([1, 2]), top_p_token_offsets=packed([0, 1, 2]))
    ids, offsets = packed([3, 4, 5, 6, 7]), packed([0, 2, 3, 5])
    play.sample(3, kept=1, top_p_token_ids=ids, top_p_token_offsets=offsets)
    assert len(filled(BOTH, play.trajectory).rollout_routed_experts) == len(play.trajectory.tokens) - 1
    play.observe(11, 12)
    play.sample(1, top_p_token_ids=packed([8]), top_p_token_offsets=packed([0, 1]), routed_experts_start_len=3)
    start = 3 * LAYERS * TOPK
    told = play.requests[-1][1]
    whole = np.frombuffer(base64.b64decode(told["routed_experts"]), np.int32)
    told["routed_experts"] = packed(whole[start:])
    sample = filled(BOTH, play.trajectory)
    assert sample.rollout_top_p_token_ids.tolist() == [1, 2, 3, 4, 8]
    assert sample.rollout_top_p_token_offsets.tolist() == [0, 1, 2, 4, 4, 4, 5]
    cut = np.frombuffer(base64.b64decode(play.requests[1][1]["routed_experts"]), np.int32)
    assert sample.rollout_routed_experts.reshape(-1).tolist() == [*cut[:start], *whole[start:]]


def test_an_episode_without_a_token_is_filled_too():
    nothing = Trajectory()
    sample = filled(BOTH, nothing)
    assert sample.tokens == [0, 0]
    assert (sample.rollout_top_p_token_ids.tolist(), sample.rollout_top_p_token_offsets.tolist()) == ([], [0, 0])
    assert sample.rollout_routed_experts.shape == (1, LAYERS, TOPK)


def test_masks_change_nothing():
    """They split spans: a generation is not to be found by them."""
    play = Conversation()
    whole = filled(BOTH, play.three_turns())
    play.trajectory.mask_where([i % 2 for i in range(play.trajectory.segment.response_length)], "host")
    play.trajectory.mask("malformed", turn=2)
    masked = filled(BOTH, play.trajectory)
    assert masked.loss_mask != whole.loss_mask
    for name in ("rollout_top_p_token_ids", "rollout_top_p_token_offsets", "rollout_routed_experts"):
        assert torch.equal(getattr(masked, name), getattr(whole, name))


def test_each_segment_has_its_own():
    play = Conversation()
    play.sample(2, top_p_token_ids=packed([1, 2]), top_p_token_offsets=packed([0, 1, 2]))
    play.trajectory.append_action(Action("", ""))
    play.trajectory.begin_segment(Rendered((1, 2, 3, 4, 5), (RenderedSpan("prompt", 0, 5),)))
    play.sample(1, top_p_token_ids=packed([3, 4]), top_p_token_offsets=packed([0, 2]))
    trajectory = play.trajectory
    samples = to_samples(trajectory, Sample(index=4), decode=decode)
    for sample, segment in zip(samples, trajectory.segments, strict=True):
        write_replay_data(BOTH, sample, segment)
    assert [s.rollout_top_p_token_ids.tolist() for s in samples] == [[1, 2], [3, 4]]
    assert [s.rollout_top_p_token_offsets.tolist() for s in samples] == [[0, 1, 2], [0, 2]]
    assert [len(s.rollout_routed_experts) for s in samples] == [3, 5]


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (
            {"top_p_token_ids": None},
            r"--rollout-top-p 0.9: .*no top_p_token_ids; run SGLang with slime's patch",
        ),
        ({"top_p_token_offsets": None}, r"returned no top_p_token_ids"),
        ({"top_p_token_offsets": packed([0, 1])}, r"--rollout-top-p 0.9: .* 2 offsets for 2 tokens"),
        ({"top_p_token_ids": packed(range(20))}, r"20 top_p_token_ids"),
        ({"top_p_token_offsets": packed([1, 2, 3])}, r"its patch does not fit"),
        ({"routed_experts": None}, r"--use-rollout-routing-replay: .*--enable-return-routed-experts"),
        ({"routed_experts": packed(range(6))}, r"6 routed_experts from token 0 on, where slime needs 3 x 3 layers x 2"),
        ({"routed_experts_start_len": 1}, r"from token 1 on"),
    ],
)
def test_what_slime_needs_and_the_engine_lacks_is_a_configuration_error(meta, message):
    play = Conversation()
    play.sample(2, **meta)
    with pytest.raises(ConfigError, match=message) as excinfo:
        filled(BOTH, play.trajectory)
    assert "\n" not in str(excinfo.value)


def test_the_likeliest_tokens_of_sampled_places_and_fillers_of_others():
    play = Conversation()
    play.sample(3, kept=2)
    play.observe(11, 12)
    play.sample(1)
    sample = filled(CENTRING, play.trajectory)
    ids, log_probs = sample.rollout_topk_token_ids, sample.rollout_topk_log_probs
    assert (ids.shape, ids.dtype, log_probs.shape, log_probs.dtype) == ((5, HEAD), np.int32, (5, HEAD), np.float32)
    told = [
        np.frombuffer(base64.b64decode(meta["output_topk_token_ids"]), np.int32) for _, meta in play.requests if meta
    ]
    assert ids.tolist() == [*told[0].reshape(-1, HEAD)[:2].tolist(), [0, 1, 2, 3], [0, 1, 2, 3], told[1].tolist()]
    assert log_probs[2].tolist() == pytest.approx([-np.log(HEAD)] * HEAD)


@pytest.mark.parametrize(
    "meta",
    [{"output_topk_token_ids": None}, {"output_topk_log_probs": packed([0.0], np.float32)}],
    ids=["absent", "of another size"],
)
def test_an_engine_without_the_likeliest_tokens(meta):
    play = Conversation()
    play.sample(2, **meta)
    with pytest.raises(ConfigError, match="2 tokens x 4; run SGLang with slime's patch, or remove the flag"):
        filled(CENTRING, play.trajectory)


def test_score_centering_asks_for_its_tokens_and_takes_no_nucleus():
    assert request_fields(CENTRING) == {"top_logprobs_num": HEAD}
    check_flags(HostArgs.of(CENTRING))
    with pytest.raises(ConfigError, match=r"--rollout-top-p 0.9: .*; write --rollout-top-p 1.0"):
        check_flags(HostArgs.of(SimpleNamespace(**{**vars(CENTRING), "rollout_top_p": 0.9})))


def test_without_a_flag_nothing_is_written():
    play = Conversation()
    sample = filled(SimpleNamespace(rollout_top_p=1.0, use_rollout_routing_replay=False), play.three_turns())
    assert (sample.rollout_top_p_token_ids, sample.rollout_routed_experts) == (None, None)
    assert filled(SimpleNamespace(), play.trajectory).rollout_top_p_token_offsets is None


def test_relatives_of_slime_have_arrays_or_nothing():
    @dataclass
    class Relative(Base):
        rollout_routed_experts: Any = None

    play = Conversation()
    sample = to_sample(play.three_turns(), Relative(), decode=decode)
    write_replay_data(BOTH, sample, play.trajectory.segment)
    assert isinstance(sample.rollout_routed_experts, np.ndarray)
    assert not hasattr(sample, "rollout_top_p_token_ids")


@pytest.mark.parametrize("stop", [StopReason.ABORTED, StopReason.FAILED])
def test_what_is_not_shipped_needs_nothing_to_be_replayed_by(stop):
    """An aborted request may come back without it."""
    play = Conversation()
    trajectory = play.three_turns()
    for turn in trajectory.turns:
        turn.meta[:] = [{k: v for k, v in meta.items() if k == "completion_tokens"} for meta in turn.meta]
    trajectory.stop = stop
    sample = filled(BOTH, trajectory)
    assert len(sample.rollout_top_p_token_offsets) == sample.response_length + 1
    assert len(sample.rollout_routed_experts) == len(sample.tokens) - 1


def test_experts_are_kept_once():
    play = Conversation()
    trajectory = play.three_turns()
    expected = filled(BOTH, trajectory).rollout_routed_experts
    forget_old_experts(trajectory)
    metas = [meta for turn in trajectory.turns for meta in turn.meta]
    assert ["routed_experts" in meta for meta in metas] == [False] * (len(metas) - 1) + [True]
    assert torch.equal(filled(BOTH, trajectory).rollout_routed_experts, expected)


def test_experts_from_some_token_on_are_all_needed():
    play = Conversation(partial=True)
    trajectory = play.three_turns()
    before = filled(BOTH, trajectory).rollout_routed_experts
    forget_old_experts(trajectory)
    assert torch.equal(filled(BOTH, trajectory).rollout_routed_experts, before)


def test_routed_experts_are_asked_for_in_the_body():
    assert request_fields(R3) == {"return_routed_experts": True}
    assert request_fields(TOP_P) == request_fields(SimpleNamespace(use_rollout_routing_replay=False)) == {}


class PartialServer:
    """Returns the experts from `routed_experts_start_len` on, or all rows if it does not know the field."""

    def __init__(self, answers, *, knows: bool = True) -> None:
        self.answers, self.knows, self.asked = iter(answers), knows, []

    async def generate(self, input_ids, sampling_params, *, session_id="", rid="", extra=None):
        start = (extra or {}).get("routed_experts_start_len", 0)
        self.asked.append(start)
        tokens = next(self.answers)
        seen = [*input_ids, *tokens][:-1][start if self.knows else 0 :]
        meta = {"completion_tokens": len(tokens), "finish_reason": {"type": "stop"}}
        if tokens:
            meta["routed_experts"] = packed([(token + k) % EXPERTS for token in seen for k in range(LAYERS * TOPK)])
        return Generation(tokens, [-1.0] * len(tokens), "stop" if tokens else "abort", meta=meta)


@pytest.mark.parametrize("knows", [True, False], ids=["start_len", "whole"])
@pytest.mark.parametrize("forget", [True, False], ids=["forgotten", "kept"])
async def test_each_request_asks_for_the_experts_of_new_tokens(knows, forget):
    """Four requests: the second is aborted before its first token, and the answer of the third is cut."""
    server = PartialServer([[3, 4], [], [5, 6, 7], [8, 9], [1]], knows=knows)
    engine = IncrementalExperts(server, LAYERS * TOPK)
    trajectory = Trajectory(session_id="s")
    trajectory.append_prompt(Rendered((1, 2), (RenderedSpan("prompt", 0, 2),)))
    trajectory.stop = StopReason.DONE
    for kept, observed in ((2, [11, 12]), (0, []), (2, [13]), (2, [14]), (1, [])):
        found = await engine.generate(trajectory.tokens, {})
        tokens = found.tokens[:kept]
        trajectory.append_model(replace(found, tokens=tokens, log_probs=[-1.0] * len(tokens)))
        if observed:
            trajectory.append_action(Action("", ""))
            trajectory.append_observation(Rendered(tuple(observed), (RenderedSpan("observation", 0, len(observed)),)))
        if forget:
            forget_old_experts(trajectory)
    assert server.asked == [0, 3, 3, 0, 10], "from 0 on after a cut, since what was dropped has rows, too"
    experts = filled(R3, trajectory).rollout_routed_experts
    assert experts[:, 0, 0].tolist() == [token % EXPERTS for token in trajectory.tokens[:-1]]


# Beside slime's own


@pytest.fixture(scope="module", params=[name for name in hosts.NAMES if hosts.PACKAGES[name] == "slime"])
def slime(request):
    if why := hosts.absent(request.param):
        pytest.skip(why)
    with hosts.imported(request.param) as found:
        if not found.has("rollout_top_p_token_ids"):
            pytest.skip("this slime has no top-p replay")
        yield found


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("encode", [packed, list], ids=["base64", "numbers"])
@pytest.mark.parametrize("partial", [False, True], ids=["whole", "start_len"])
def test_equal_to_slimes_own_bookkeeping(slime, monkeypatch, encode, partial):
    monkeypatch.setitem(sys.modules, "pybase64", base64)  # the same function, faster
    play = Conversation(encode=encode, partial=partial)
    trajectory = play.three_turns()
    theirs = slime.Sample(tokens=[1, 2])
    for tokens, meta in play.requests:
        log_probs = None if meta is None else [-1.0] * len(tokens)
        theirs.append_response_tokens(
            BOTH, tokens=tokens, log_probs=log_probs, trainable=meta is not None, meta_info=meta
        )
    ours = to_sample(trajectory, slime.Sample(), decode=decode)
    write_replay_data(BOTH, ours, trajectory.segment)
    assert (ours.tokens, ours.loss_mask) == (theirs.tokens, theirs.loss_mask)
    assert ours.rollout_log_probs == theirs.rollout_log_probs
    if slime.turns:  # since 0.4, pieces that are joined later
        theirs.materialize_rollout_routed_experts(replace=True)
    for name in ("rollout_top_p_token_ids", "rollout_top_p_token_offsets", "rollout_routed_experts"):
        own, other = getattr(ours, name), getattr(theirs, name)
        assert (type(own), own.dtype) == (type(other), other.dtype)
        assert torch.equal(own, other)
    ours._validate_response_metadata_lengths()


@pytest.mark.filterwarnings("default")
def test_heads_are_equal_to_slimes_own_bookkeeping(slime, monkeypatch):
    slime.need(slime.has("rollout_topk_token_ids"), "score centering")
    monkeypatch.setitem(sys.modules, "pybase64", base64)
    play = Conversation()
    trajectory = play.three_turns()
    theirs = slime.Sample(tokens=[1, 2])
    for tokens, meta in play.requests:
        log_probs = None if meta is None else [-1.0] * len(tokens)
        theirs.append_response_tokens(
            CENTRING,
            tokens=tokens,
            log_probs=log_probs,
            trainable=meta is not None,
            meta_info=meta
            and {key: value for key, value in meta.items() if key not in ("routed_experts", *TOP_P_KEYS)},
        )
    ours = to_sample(trajectory, slime.Sample(), decode=decode)
    write_replay_data(CENTRING, ours, trajectory.segment)
    assert np.array_equal(ours.rollout_topk_token_ids, theirs.rollout_topk_token_ids)
    assert np.array_equal(ours.rollout_topk_log_probs, theirs.rollout_topk_log_probs)
    assert ours.rollout_topk_log_probs.dtype == theirs.rollout_topk_log_probs.dtype
    ours._validate_response_metadata_lengths()


@pytest.mark.filterwarnings("default")
def test_slime_takes_them_to_its_trainer(slime):
    """A whole episode, one that ends in an observation, one that failed before its first token, and two siblings."""
    unread, fanned, broken = Conversation(1), Conversation(2), Trajectory()
    broken.stop = StopReason.FAILED
    unread.sample(2)
    unread.observe(11, 12)
    fanned.sample(3)
    fanned.trajectory.append_action(Action("", ""))
    fanned.trajectory.begin_segment(Rendered((1, 2, 3), (RenderedSpan("prompt", 0, 3),)))
    fanned.sample(2)
    fanned.trajectory.reward = unread.trajectory.reward = 1.0
    samples, segments = [], []
    for i, trajectory in enumerate((broken, Conversation().three_turns(), unread.trajectory, fanned.trajectory)):
        trajectory.reward = 1.0
        samples += to_samples(trajectory, slime.Sample(index=i, group_index=0), decode=decode)
        segments += trajectory.segments
    args = SimpleNamespace(**{**hosts.ARGS, **vars(BOTH), "global_batch_size": 4})
    for sample, segment in zip(samples, segments, strict=True):
        write_replay_data(args, sample, segment)
    data = hosts.Conversion(slime, args).convert(samples)
    for tokens, experts in zip(data["tokens"], data["rollout_routed_experts"], strict=True):
        assert len(experts) == len(tokens) - 1, "as cp_utils.prepare_routed_experts_for_routing_replay asserts"
    assert data["rollout_ids"] == [0, 1, 2, 3, 3]
    kept = slime.metrics.compute_metrics_from_samples(args, samples)["top_p_kept_vocab_per_token"]
    assert 1.0 <= kept <= 3.0, "masked tokens and observations are left out"


@web.middleware
async def patched_sglang(request: web.Request, handler: Any) -> web.StreamResponse:
    """What slime's patch of SGLang adds to an answer: the nucleus of each token (itself and the next), and experts."""
    if request.path != "/generate":
        return await handler(request)
    body = await request.json()
    assert body["sampling_params"].pop("custom_params") == {"return_top_p_token_ids": True}
    assert body.pop("return_routed_experts") is True
    start = body.pop("routed_experts_start_len", 0)
    request._read_bytes = json.dumps(body).encode()
    response = await handler(request)
    answer = json.loads(response.body)
    tokens = [token for _, token, *_ in answer["meta_info"]["output_token_logprobs"]]
    seen = [*body["input_ids"], *tokens][start:-1]
    answer["meta_info"] |= {
        "top_p_token_ids": packed([near for token in tokens for near in (token, token + 1)]),
        "top_p_token_offsets": packed(range(0, 2 * len(tokens) + 1, 2)),
        "routed_experts": packed([(token + k) % EXPERTS for token in seen for k in range(LAYERS * TOPK)]),
    }
    return web.json_response(answer)


@pytest.mark.filterwarnings("default")
def test_through_slimes_rollout(slime, renderer, tmp_path):
    save_model(tiny_model(0), tiny_tokenizer(), tmp_path / "checkpoint")
    with starting(slime, tmp_path / "checkpoint", renderer, tmp_path) as start:
        rows = [{"prompt": f"the capital of {c}?", "label": c, "metadata": {}} for c in ("France", "Spain") * 2]
        rows[3]["metadata"] = {"break": "reset", "how": "world"}
        run = start(rows, middlewares=(patched_sglang,), **{**vars(BOTH), "rollout_top_k": -1})
        samples, _ = run.samples()
        data, _ = run.convert(samples)
    assert [s.metadata["agentrl"]["turns"] for s in samples] == [2] * 6 + [0] * 2
    for i, sample in enumerate(samples):
        ids, offsets = data["rollout_top_p_token_ids"][i].tolist(), data["rollout_top_p_token_offsets"][i].tolist()
        nuclei = [ids[start:stop] for start, stop in pairwise(offsets)]
        response = sample.tokens[-sample.response_length :]
        assert nuclei == [[t, t + 1] if mask else [] for t, mask in zip(response, sample.loss_mask, strict=True)]
        experts = data["rollout_routed_experts"][i]
        assert experts.shape == (len(sample.tokens) - 1, LAYERS, TOPK)
        if not sample.remove_sample:
            assert experts[:, 0, 0].tolist() == [token % EXPERTS for token in sample.tokens[:-1]]
