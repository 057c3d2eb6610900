"""The JSON responses to the web page's requests. All methods run in a single thread, except `warm`."""

from __future__ import annotations

import gc
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from agentrl.errors import ConfigError
from agentrl.types import JSON
from agentrl.view.audit import audit
from agentrl.view.comparing import differing, ends, held_out, unlike
from agentrl.view.export import export_page
from agentrl.view.files import EpisodeFile, Indexed, NotKeptError, outlines
from agentrl.view.model import EpisodeRecord
from agentrl.view.payload import episode_payload, find_text, group_payload, worst_tokens
from agentrl.view.query import Listed, Query
from agentrl.view.search import TextSearch
from agentrl.view.sources import Run, Source
from agentrl.view.texts import TokenTexts, load_texts

_PAGE = 400
_SECONDS = 1.0
"""Seconds that a request for a list may read files. The next request reads further."""
_MOST = 50_000
"""The most episodes of a file without an index that a list searches."""
_WORST_OF = 24
"""The most episodes whose tokens are compared, beginning with the episode of the largest difference between engine and
trainer."""
_MEMBERS = 16
_SEARCHES = 4
"""The most searches that are stored with their matches."""

Parameters = Mapping[str, str]


class PageAnswers:
    """Responds to the web page's requests from the sources. All methods raise ConfigError."""

    def __init__(self, sources: Sequence[Source], model: str | None) -> None:
        self.sources = sources
        self._model = model
        self._texts: dict[str | None, TokenTexts | None] = {}
        self._loading = threading.Lock()
        self._searches: OrderedDict[tuple[str, ...], TextSearch] = OrderedDict()
        self._questions: dict[str, Callable[[Parameters], JSON]] = {
            "state": self.state,
            "list": self.listed,
            "episode": self.episode,
            "group": self.group,
            "worst": self.worst,
            "find": self.find,
            "search": self.search,
            "audit": self.audit,
            "compare": self.compare,
        }

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._questions)

    def answer(self, name: str, parameters: Parameters) -> JSON:
        return self._questions[name](parameters)

    def warm(self) -> None:
        """Load the tokenizers, while the first page is read."""
        for source in self.sources:
            self._texts_of(source)

    def _texts_of(self, source: Source) -> TokenTexts | None:
        """The decoder of a source's tokens. None if the model is unknown, or its tokenizer is missing on this machine:
        then the page shows token ids."""
        model = self._model or source.model
        with self._loading:
            if model not in self._texts:
                try:
                    self._texts[model] = None if model is None else load_texts(model)
                except ConfigError:
                    self._texts[model] = None
            return self._texts[model]

    # Questions

    def state(self, parameters: Parameters) -> JSON:
        """The state of all sources, and a `mark` of this state. If the parameter `seen` equals the mark, only the
        mark."""
        states = [source.state() for source in self.sources]
        mark = "/".join(f"{state.get('wrote', 0)}:{len(state['files'])}" for state in states)
        if parameters.get("seen") == mark:
            return {"mark": mark, "now": time.time()}
        return {"mark": mark, "now": time.time(), "sources": states}

    def listed(self, parameters: Parameters) -> JSON:
        """The episodes that match a query, in the file `f` or, without `f`, in all files, the newest file first."""
        source, query = self._source(parameters), Query.of(parameters)
        offset, limit = _whole(parameters, "offset", 0), min(_whole(parameters, "limit", _PAGE), 5_000)
        names = [parameters["f"]] if "f" in parameters else source.listing()[::-1]
        files = {name: source.file(name) for name in names}
        totals = {name: file.refresh() for name, file in files.items()}
        if query.empty and len(names) == 1:
            file, total = files[names[0]], totals[names[0]]
            rows = [(names[0], n, file.outline(n)) for n in range(offset, min(offset + limit, total))]
            return {"total": total, "looked_at": total, "found": total, "rows": rows}
        with _no_collection():
            matches, looked_at = self._matching(files, query)
            ordered = query.ordered(matches)
        return {
            "total": sum(totals.values()),
            "looked_at": looked_at,
            "found": len(ordered),
            "rows": ordered[offset : offset + limit],
        }

    def _matching(self, files: Mapping[str, EpisodeFile], query: Query) -> tuple[list[Listed], int]:
        listed_episodes, looked_at, end, matches = list[Listed](), 0, time.monotonic() + _SECONDS, query.matching()
        for name, file in files.items():
            listed = outlines(file, seconds=max(0.0, end - time.monotonic()))
            for number, outline in islice(listed, None if isinstance(file, Indexed) else _MOST):
                looked_at += 1
                if matches(outline):
                    listed_episodes.append((name, number, outline))
        return listed_episodes, looked_at

    def episode(self, parameters: Parameters) -> JSON:
        source, number = self._source(parameters), _whole(parameters, "n", 0)
        record = self._read(self._file(parameters), number)
        return {"number": number, "file": parameters.get("f"), **episode_payload(record, self._texts_of(source))}

    def group(self, parameters: Parameters) -> JSON:
        """The episodes of the group `g`, or the episodes whose numbers are in `n`."""
        file, source = self._file(parameters), self._source(parameters)
        if "n" in parameters:
            numbers = [int(n) for n in parameters["n"].split(",") if n.isdecimal()]
        else:
            numbers = [n for n, outline in outlines(file) if str(outline.get("group")) == parameters.get("g")]
        members, left_out = list[tuple[int, EpisodeRecord]](), 0
        for number in numbers[:_MEMBERS]:
            try:
                members.append((number, self._read(file, number)))
            except NotKeptError:
                left_out += 1
        left_out += max(0, len(numbers) - _MEMBERS)
        return {**group_payload(members, self._texts_of(source)), "left_out": left_out}

    def worst(self, parameters: Parameters) -> JSON:
        file, source = self._file(parameters), self._source(parameters)
        listed = [(outline.get("gap"), n) for n, outline in outlines(file, seconds=_SECONDS)]
        largest = sorted(((gap, n) for gap, n in listed if gap is not None), reverse=True)[:_WORST_OF]
        read = list(self._kept(file, [n for _, n in largest]))
        return {
            "tokens": worst_tokens(read, self._texts_of(source)),
            "episodes": len(read),
            "told": len([gap for gap, _ in listed if gap is not None]),
        }

    def find(self, parameters: Parameters) -> JSON:
        record = self._read(self._file(parameters), _whole(parameters, "n", 0))
        return {"places": find_text(record, self._texts_of(self._source(parameters)), parameters.get("q", ""))}

    def search(self, parameters: Parameters) -> JSON:
        """Episodes that contain a text, from row `from` on. Each request continues where the previous request
        stopped."""
        source, sought = self._source(parameters), parameters.get("q", "")
        if not sought:
            raise ConfigError("give the text: q")
        only = parameters.get("f") or None
        key = parameters.get("s", "0"), only or "", sought
        search = self._searches.setdefault(key, TextSearch(sought, only))
        self._searches.move_to_end(key)
        while len(self._searches) > _SEARCHES:
            self._searches.popitem(last=False)
        search.advance(source, self._texts_of(source))
        return search.answer(_whole(parameters, "from", 0))

    def audit(self, parameters: Parameters) -> JSON:
        source = self._source(parameters)
        texts = self._texts_of(source)
        reports = []
        for name in [parameters["f"]] if "f" in parameters else source.listing():
            file = source.file(name)
            episodes = ((f"#{n}", episode) for n, episode in self._kept(file, range(file.refresh())))
            reports.append(audit(name, episodes, texts.decode if texts is not None else None).to_json())
        return {"reports": reports}

    def compare(self, parameters: Parameters) -> JSON:
        runs = [source for source in self.sources if isinstance(source, Run)]
        if len(runs) < 2:
            raise ConfigError("two runs are compared; start agentrl view RUN RUN")
        return {
            "runs": [run.name for run in runs],
            "places": [self.sources.index(run) for run in runs],
            "config": differing([run.config for run in runs]),
            "held_out": [{name: score.to_json() for name, score in held_out(run).items()} for run in runs],
            "ends": [{name: ends(run.metrics(), name) for name in _ENDS} for run in runs],
            "unlike": (reasons := unlike(runs)),
            "shared": [] if reasons else self._shared(runs),
        }

    def _shared(self, runs: Sequence[Run]) -> JSON:
        """The held-out tasks that every run played in its last evaluation, and for each run a list of the file,
        the episode's number and the reward."""
        tasks: dict[str, list[JSON]] = {}
        for number_of_run, run in enumerate(runs):
            names = [name for name in run.listing() if name.startswith("eval_")]
            name = "eval_final" if "eval_final" in names else names[-1] if names else None
            for number, outline in outlines(run.file(name)) if name else ():
                task = str(outline.get("task"))
                tasks.setdefault(task, [None] * len(runs))[number_of_run] = [name, number, outline.get("reward")]
        return [[task, *places] for task, places in tasks.items() if all(places)][:_PAGE]

    def image(self, parameters: Parameters) -> tuple[bytes, str]:
        """The bytes and the media type of an episode's image. `d` is the image's digest."""
        record = self._read(self._file(parameters), _whole(parameters, "n", 0))
        for placed_image in (placed_image for sequence in record.sequences for placed_image in sequence.images):
            if placed_image.image.digest == parameters.get("d"):
                return placed_image.image.data, placed_image.image.media_type
        raise ConfigError("the episode has no such image")

    def export(self, parameters: Parameters, static: Mapping[str, tuple[bytes, str]]) -> tuple[str, str]:
        """The name of an HTML file for an episode, and its content."""
        record = self._read(self._file(parameters), _whole(parameters, "n", 0))
        pictures = {
            placed_image.image.digest: placed_image.image.uri
            for sequence in record.sequences
            for placed_image in sequence.images
        }
        page = export_page({**self.episode(parameters), "pictures": pictures}, static)
        return f"{parameters.get('f', 'episode')}-{_whole(parameters, 'n', 0)}.html", page

    # Finding

    def _source(self, parameters: Parameters) -> Source:
        number = _whole(parameters, "s", 0)
        if not 0 <= number < len(self.sources):
            raise ConfigError(f"there are {len(self.sources)} sources, counted from 0")
        return self.sources[number]

    def _file(self, parameters: Parameters) -> EpisodeFile:
        return self._source(parameters).file(parameters.get("f", ""))

    @staticmethod
    def _read(file: EpisodeFile, number: int) -> EpisodeRecord:
        if not 0 <= number < file.refresh():
            raise ConfigError(f"{file.path.name} has no episode {number}")
        return file.episode(number)

    def _kept(self, file: EpisodeFile, numbers: Sequence[int]) -> Iterator[tuple[int, EpisodeRecord]]:
        for number in numbers:
            try:
                yield number, self._read(file, number)
            except NotKeptError:
                continue


_ENDS = ("reward_mean", "response_length_mean", "turns_mean", "zero_advantage_groups", "logprob_diff_mean", "seconds")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch the garbage collector off while a long list grows: the collector would walk all its rows repeatedly."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _whole(parameters: Parameters, name: str, default: int) -> int:
    value = parameters.get(name, "")
    if value and not value.isdecimal():
        raise ConfigError(f"{name}={value!r} is not a number")
    return int(value) if value else default
