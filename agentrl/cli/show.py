"""`agentrl show`: a whole trajectory, with the author of each token and whether the token is trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.rule import Rule
from rich.style import Style
from rich.text import Text

from agentrl._util.config_errors import check_file
from agentrl.cli._errors import one_line_errors
from agentrl.cli._session import session_tree, visible
from agentrl.cli.models import open_renderer, run_config, weights_of
from agentrl.errors import ConfigError, LedgerError
from agentrl.image import has_image, parts_of
from agentrl.render.base import Renderer
from agentrl.rollout.data.chat_rows import ChatReader, SkippedError, is_chat, other_format
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.trajectory import Span, Trajectory, total_ledger
from agentrl.types import JSON

if TYPE_CHECKING:
    from agentrl.view.query import Listed, Query

Decode: TypeAlias = Callable[[Sequence[int]], str]
Role: TypeAlias = Literal["prompt", "trained", "masked", "env", "template", "unread"]


@dataclass(frozen=True, slots=True)
class _Look:
    mark: str
    """The word at the start of each line that names the author of the text if there are no colours."""
    style: Style
    meaning: str


_LOOKS: dict[Role, _Look] = {
    "prompt": _Look("prompt", Style(dim=True), "the first observation, as the template writes it"),
    "trained": _Look("model*", Style(color="green", bold=True), "sampled by the model, trained"),
    "masked": _Look("model-", Style(color="red", strike=True), "sampled by the model, not trained"),
    "env": _Look("env", Style(color="yellow"), "written by the environment"),
    "template": _Look("template", Style(color="blue", dim=True), "written by the chat template"),
    "unread": _Look("unread", Style(color="yellow", italic=True), "what the environment answered last; no tokens"),
}
_MARK_WIDTH = max(len(look.mark) for look in _LOOKS.values())
_COLUMNS = ("episode", "task", "reward", "stop", "turns", "tokens", "trained", "masked", "seconds", "answer")
_NUMBERS = ("reward", "turns", "tokens", "trained", "seconds")
_RECORDED = "name a file of trajectories, as agentrl play writes one"


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbouring tokens with the same role. They are decoded together, because a character may take several
    tokens."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    """A trajectory for rich to print: in colours on a terminal, else with a mark before each line."""

    trajectory: Trajectory
    decode: Decode
    advantages: Sequence[Sequence[float | None]] = ()
    """For each segment, the advantages of its turns, as a run's records have them. A segment whose turns have equal
    advantages has a single value."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = console.no_color or console.color_system is None or not console.is_terminal
        yield Rule(_title(self.trajectory), align="left", style="dim")
        if self.trajectory.session is not None:
            yield from session_tree(self.trajectory, options.max_width)
            yield Rule(style="dim")
        pieces = [piece for segment in self.trajectory.segments for piece in _pieces(segment, self.decode)]
        unread = _unread(self.trajectory)
        if plain:
            yield from _marked([*pieces, *unread], console, options.max_width)
        else:
            yield Text.assemble(*((piece.text, _LOOKS[piece.role].style) for piece in pieces))
            yield from (Text(piece.text, _LOOKS[piece.role].style) for piece in unread)
        yield Rule(style="dim")
        yield from _legend(self.trajectory, plain=plain)
        yield from _credit(self.trajectory, self.advantages)


def render_trajectory(
    trajectory: Trajectory, decode: Decode, advantages: Sequence[Sequence[float | None]] = ()
) -> TrajectoryView:
    """A renderable for `rich.print`. `decode` turns token ids into text, special tokens included."""
    return TrajectoryView(trajectory, decode, advantages)


def _credit(trajectory: Trajectory, advantages: Sequence[Sequence[float | None]]) -> Iterator[Text]:
    """A line for each turn with a reward, or with an advantage if the turns' advantages differ."""
    by_turn: list[float | None] = []
    for segment, of_segment in zip_longest(trajectory.segments, advantages, fillvalue=()):
        turns = len(segment.turns) if isinstance(segment, Segment) else 0
        by_turn += (
            [*of_segment, *[None] * turns][:turns] if len(of_segment) > 1 else [*of_segment] * turns or [None] * turns
        )
    rewards = [turn.reward for segment in trajectory.segments for turn in segment.turns]
    if len({*by_turn}) < 2 and not any(rewards):
        return
    for number, (reward, advantage) in enumerate(zip(rewards, by_turn, strict=True)):
        figures = [
            f"{name} {value:g}" for name, value in (("reward", reward), ("advantage", advantage)) if value is not None
        ]
        if figures:
            yield Text(f"turn {number}: {', '.join(figures)}")


def _pieces(segment: Segment, decode: Decode) -> Iterator[_Piece]:
    stop = segment.prompt_length
    yield _Piece("prompt", visible(_decoded(segment, 0, stop, decode)))
    for role, spans in groupby(segment.spans, key=_role):
        start = stop
        for span in spans:
            stop += span.stop - span.start
        yield _Piece(role, visible(_decoded(segment, start, stop, decode)))


def _decoded(segment: Segment, start: int, stop: int, decode: Decode) -> str:
    """The text of tokens, with a label in place of the padding tokens of each image."""
    tokens, parts = segment.ids, list[str]()
    for image in segment.media:
        if start <= image.start < stop:
            parts += [decode(tokens[start : image.start].tolist()), image.label]
            start = image.stop
    return "".join([*parts, decode(tokens[start:stop].tolist())])


def _unread(trajectory: Trajectory) -> list[_Piece]:
    """The last messages of the episode, if the model has not read them."""
    messages = trajectory.messages[len(trajectory.messages) - trajectory.unread :]
    return [_Piece("unread", visible(f"{m.get('role')}: {_shown(m.get('content'))}")) for m in messages]


def _shown(content: JSON) -> JSON:
    """A message's content, with a label in place of each image."""
    if not has_image(content):
        return content
    return "".join(part if isinstance(part, str) else repr(part) for part in parts_of(content))


def _role(span: Span) -> Role:
    if span.author == "model":
        return "trained" if span.masked is None else "masked"
    return span.author


def _title(trajectory: Trajectory) -> Text:
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    parts = [f"reward {reward}", f"stop {trajectory.stop or 'none'}", f"{len(trajectory.turns)} turns"]
    parts += [f"{name} {reward:g}" for name, reward in trajectory.branch_rewards.items()]
    if trajectory.task.id:
        parts.insert(0, f"task {trajectory.task.id}")
    player = trajectory.info.get("player")
    if isinstance(player, dict):
        parts.append(f"played by {player.get('model')}")
    if trajectory.failure is not None:
        parts.append(f"{trajectory.failure.boundary}: {trajectory.failure.error}")
    return Text(visible(", ".join(parts)))


def _marked(pieces: Sequence[_Piece], console: Console, width: int) -> Iterator[Text]:
    """Lines of text, each after the mark of its author. A line break at the end of a piece is drawn as a symbol, as the
    next mark starts a new line anyway."""
    for piece in pieces:
        mark = f"{_LOOKS[piece.role].mark:<{_MARK_WIDTH}} | "
        text = f"{piece.text[:-1]}\u21b5" if piece.text.endswith("\n") else piece.text
        for line in text.split("\n"):
            for part in Text(line).wrap(console, max(width - len(mark), 20), overflow="fold") or [Text()]:
                yield Text(mark) + part


def _legend(trajectory: Trajectory, *, plain: bool) -> Iterator[Text]:
    ledger = total_ledger(trajectory.segments)
    masked = sum(ledger.masked.values())
    counts: dict[Role, int] = {
        "prompt": sum(segment.prompt_length for segment in trajectory.segments),
        "trained": ledger.trained,
        "masked": masked,
        "env": ledger.observation,
        "template": ledger.scaffold,
    }
    for role, count in counts.items():
        look = _LOOKS[role]
        if count:
            name = Text(f"{look.mark:<{_MARK_WIDTH}}", Style() if plain else look.style)
            yield Text.assemble(name, f"  {count:>6} tokens  {look.meaning}")
    if trajectory.unread:
        look = _LOOKS["unread"]
        name = Text(f"{look.mark:<{_MARK_WIDTH}}", Style() if plain else look.style)
        yield Text.assemble(name, f"  {trajectory.unread:>6} messages  {look.meaning}")
    reasons = ", ".join(f"{count} {reason}" for reason, count in ledger.masked.items())
    total = f"{masked} ({reasons})" if reasons else "0"
    yield Text(f"ledger: sampled {ledger.sampled} = trained {ledger.trained} + masked {total}")


def show(
    trajectories: Annotated[
        Path, typer.Argument(help="A file of trajectories or of chat, one a line, or a run's folder.")
    ],
    index: Annotated[
        int, typer.Option(help="Which trajectory, counted from 0; a negative index counts from the end.")
    ] = 0,
    model: Annotated[
        str | None, typer.Option(help="The model whose tokenizer reads it. Default: that of the file's run, else tiny.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the episodes, of any format, instead.")] = False,
    stop: Annotated[str, typer.Option(help="List those that stopped so, such as max_turns.")] = "",
    reason: Annotated[str, typer.Option(help="List those with tokens masked for this reason, or any.")] = "",
    reward: Annotated[str, typer.Option(help="List those with this reward: 0, '<0.5', '>=1' or none.")] = "",
    sort: Annotated[str, typer.Option(help="List by a figure, such as tokens; -tokens has the largest first.")] = "",
    worst: Annotated[int | None, typer.Option(help="List so many with the lowest reward.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="List as JSON, an episode a line.")] = False,
) -> None:
    """Print a whole trajectory: who wrote each token, and which are trained. Or list episodes, and print none.

    A row of chat is shown as agentrl sft learns it, in the template of --model.
    """
    with one_line_errors(lambda: "nothing is lost"):
        if listed or stop or reason or reward or sort or worst or as_json:
            from agentrl.view.query import Query

            query = Query(stop=stop, reason=reason, reward=reward, sort=sort or ("reward" if worst else ""))
            query.check()
            _print_list(trajectories, query, worst=worst, as_json=as_json)
            return
        file = _newest(trajectories) if trajectories.is_dir() else trajectories
        name = model or _model_of(file)
        trajectory = load_trajectory(file, index, lambda row: _of_chat(row, open_renderer(name)[0], name))
        renderer, _ = open_renderer(name)
        _check_tokenizer(trajectory, renderer.decode, file)
        advantages = _advantages(file, index)
    Console().print(render_trajectory(trajectory, renderer.decode, advantages))


def _advantages(file: Path, index: int) -> Sequence[Sequence[float | None]]:
    """The advantages of row `index` in a run's record, by segment and turn; empty for other files."""
    line = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()][index]
    training = json.loads(line).get("training") or {}
    advantages: Sequence[Sequence[float | None]] = training.get("advantages") or ()
    return advantages


def load_trajectory(
    file: Path, index: int = 0, of_chat: Callable[[Mapping[str, JSON]], Trajectory] | None = None
) -> Trajectory:
    """The trajectory on line `index` of a JSONL file. `of_chat` makes a trajectory of a row of chat.

    Raises ConfigError (`file:line: what and remedy`).
    """
    try:
        lines = [(n, line) for n, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as exc:
        check_file(file, _RECORDED)
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8 text"
        raise ConfigError(f"{file}: {reason}; {_RECORDED}") from exc
    if not -len(lines) <= index < len(lines):
        raise ConfigError(f"--index {index}: {file} holds {len(lines)} trajectories, counted from 0")
    number, line = lines[index]
    try:
        data = json.loads(line)
        if remedy := other_format(data):
            raise ConfigError(f"{file}:{number}: not a readable chat; {remedy}")
        if of_chat is not None and is_chat(data):
            return _at(f"{file}:{number}", lambda: of_chat(data))
        trajectory = _of_log(lines) if "event" in data else Trajectory.from_json(data)
        list(session_tree(trajectory, 80))  # read an agent's session here, not while it is printed
        return trajectory
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, LedgerError) as exc:
        raise ConfigError(f"{file}:{number}: not a trajectory ({type(exc).__name__}: {exc}); record it again") from exc


def _at(where: str, read: Callable[[], Trajectory]) -> Trajectory:
    """The result of `read`. For chat that cannot be learned, raises ConfigError with the file and line `where`."""
    try:
        return read()
    except SkippedError as exc:
        raise ConfigError(f"{where}: agentrl sft would skip this row: {exc}") from exc
    except ConfigError as exc:
        raise ConfigError(f"{where}: {exc}") from exc


def _of_chat(row: Mapping[str, JSON], renderer: Renderer, model: str) -> Trajectory:
    """The trajectory of a row of chat, in the chat template of `model`. Length is not limited."""
    chat = ChatReader(renderer=renderer, context=1 << 30).read(row)
    typer.echo(f"chat, as agentrl sft --model {model} learns it")
    for remark in chat.remarks:
        typer.echo(f"it has {remark}")
    return chat.trajectory


def _of_log(lines: Sequence[tuple[int, str]]) -> Trajectory:
    """The trajectory of an agent's session, from the lines of the session's log. The log may end early."""
    from agentrl.gateway.session.session import Session

    trajectory = Trajectory()
    Session.replay(line for _, line in lines).write(trajectory)
    return trajectory


def _newest(run: Path) -> Path:
    """The newest file of trajectories in a run's folder. Raises ConfigError if there is none."""
    files = sorted((run / "trajectories").glob("*.jsonl"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise ConfigError(f"{run}: no trajectories/*.jsonl in this folder; name a file of trajectories")
    return files[-1]


def _model_of(file: Path) -> str:
    """The model of the run in whose `trajectories` folder the file lies, else the name `tiny`."""
    folder = str(file.parent.parent)
    run = run_config(folder)
    if run is None:
        return "tiny"
    try:
        return weights_of(folder)
    except ConfigError:  # no checkpoint yet
        return run.model


def _check_tokenizer(trajectory: Trajectory, decode: Decode, file: Path) -> None:
    """Raises ConfigError if the tokens decode to other text than was recorded."""
    for action in trajectory.actions:
        if action.text not in decode(action.tokens):
            raise ConfigError(f"{file}: recorded with another tokenizer; name its model with --model")


def _print_list(path: Path, query: Query, *, worst: int | None, as_json: bool) -> None:
    """Print the episodes of the query. Raises ConfigError."""
    episodes = query.ordered(_listed(path, query))[:worst]
    if as_json:
        for file, number, outline in episodes:
            typer.echo(json.dumps({"file": file, "index": number, **outline}, ensure_ascii=False))
        return
    # not rich's Table, which takes a millisecond a row
    rows = [_COLUMNS, *([visible(cell) for cell in _cells(*episode)] for episode in episodes)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    typer.echo("\n".join("  ".join(map(_aligned, _COLUMNS, row, widths)).rstrip() for row in rows))
    typer.echo(f"{len(episodes)} episodes")


def _aligned(column: str, cell: str, width: int) -> str:
    blank = " " * (width - cell_len(cell))
    return f"{blank}{cell}" if column in _NUMBERS else f"{cell}{blank}"


def _listed(path: Path, query: Query) -> Iterator[Listed]:
    from agentrl.view.files import outlines
    from agentrl.view.sources import open_source

    source, matches = open_source(path), query.matching()
    for name in source.listing():
        for number, outline in outlines(source.file(name)):
            if matches(outline):
                yield name, number, outline


def _cells(file: str, number: int, outline: Mapping[str, JSON]) -> Sequence[str]:
    masked = ", ".join(f"{tokens} {reason}" for reason, tokens in outline.get("masked", {}).items())
    reward = outline.get("reward")
    seconds = outline.get("generate_s", 0.0) + outline.get("env_s", 0.0)
    return (
        f"{file} {number}",
        str(outline.get("task", "")),
        "none" if reward is None else f"{reward:g}",
        str(outline.get("stop", "none")),
        str(outline.get("turns", 0)),
        str(outline.get("tokens", 0)),
        str(outline.get("trained", 0)),
        masked or "0",
        f"{seconds:.1f}",
        str(outline.get("failure") or outline.get("answer", "")).replace("\n", " "),
    )
