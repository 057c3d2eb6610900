"""Units and nouns after a number: their synonyms, and words that are neither unit nor noun."""

from __future__ import annotations

from .nodes import UnreadableError

_UNITS = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "dm": "decimeter decimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "mg": "milligram",
    "g": "gram",
    "kg": "kilogram",
    "t": "tonne ton",
    "ms": "millisecond",
    "s": "second sec",
    "min": "minute",
    "h": "hour hr",
    "day": "",
    "week": "wk",
    "month": "",
    "year": "yr",
    "inch": "in",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "lb": "pound lbs",
    "oz": "ounce",
    "gal": "gallon",
    "qt": "quart",
    "pt": "pint",
    "cup": "",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "acre": "",
    "ha": "hectare",
    "degree": "deg",
    "rad": "radian",
    "celsius": "",
    "fahrenheit": "",
    "k": "kelvin",
    "n": "newton",
    "j": "joule",
    "kj": "kilojoule",
    "w": "watt",
    "kw": "kilowatt",
    "v": "volt",
    "a": "ampere amp",
    "hz": "hertz",
    "pa": "pascal",
    "mol": "mole",
    "cal": "calorie",
    "mph": "",
    "kph": "kmh kmph",
    "$": "dollar usd",
    "cent": "",
    "€": "euro eur",
    "£": "",
    "¥": "yen yuan",
    "₹": "rupee rs",
    "%": "percent pct percentage",
    "am": "",
    "pm": "",
    "unit": "",
    "point": "pts pt",
}
_NAMES = {word: unit for unit, words in _UNITS.items() for word in (unit, *words.split())}
_NOUN_TEXT = """
adult apple ball bag bar bird book bottle box boy bus cake candy car card cat chair chicken child children class coin
color cookie cow customer digit dog edge egg element face fish flower friend game girl guest handshake hat horse
integer item key kid lap letter line marble marker match member men mile minute move number orange outcome page pen
pencil people person piece pizza plant player problem question rabbit rectangle room row seat set sheet shirt shoe
side slice solution square step sticker stone story student subset team term ticket tile toy trip truck tree triangle
vertex vertices way win woman women word worker
"""
_NOUNS = set(_NOUN_TEXT.split())
_SHORT_TEXT = "mm cm dm km mg kg ml ft yd lb lbs oz hr yr am pm mph min sec sq cu"
_SHORT = set(_SHORT_TEXT.split())
r"""Abbreviations that are units also outside of text commands such as \text."""
_SYMBOLS = set("mgshlLKNJWV")
"""Units of a single letter. Other upright letters are variables."""
_MARKS = {"$", "%", "€", "£", "¥", "₹"}
SPEEDS = {"mi / h": "mph", "km / h": "kph"}
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NO_UNIT_TEXT = """
a about after ago all almost am an and any approx approximately around as at back base before below between but by
cubed dozen each either equal equals estimate estimated every except exactly factorial false for from gross half
halves hence i if in incorrect infinitely infinity is it least left less lots many maximum minimum minus mod modulo
more most negative neither no none nor not of off on only onward or otherwise out over pair pairs plus positive
quarter quarters remainder right root roots score squared such than that the then there third thirds to too true twice
under undefined unless until up upon versus when where which with without wrong yes zero one two three four five six
seven eight nine ten eleven twelve twenty thirty forty fifty fourth fourths fifth fifths sixth sixths seventh sevenths
eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths lakh crore crores quadrillion
dozens hundreds thousands millions billions trillions times
"""
_NO_UNITS = set(_NO_UNIT_TEXT.split())
"""Words that change the meaning of a number, or are not nouns."""


def is_plain_unit(word: str) -> bool:
    r"""Whether the word may be a unit outside \text: a full word, or an abbreviation of two letters or more."""
    lower = word.lower()
    return lower in SCALES or lower in _SHORT or (len(word) > 2 and bool(_known(lower)))


def unit(word: str) -> str:
    """The canonical name of a unit. Raises UnreadableError for a word that is no unit."""
    lower = word.lower()
    if word in _MARKS:
        return word
    if len(word) == 1 and word not in _SYMBOLS:
        raise UnreadableError(f"{word} is no unit")
    if name := _NAMES.get(_singular(lower, _NAMES)):
        return name
    if len(lower) < 3 or lower in _NO_UNITS or not lower.isalpha():
        raise UnreadableError(f"{word} is no unit")
    return _known(lower) or lower.removesuffix("s")


def _known(lower: str) -> str:
    word = _singular(lower, _NAMES)
    if word in _NAMES:
        return _NAMES[word]
    word = _singular(lower, _NOUNS)
    return word if word in _NOUNS else ""


def _singular(word: str, words: dict[str, str] | set[str]) -> str:
    endings = ("", "s", "es")
    return next(
        (word.removesuffix(end) for end in endings if word.endswith(end) and word.removesuffix(end) in words), ""
    )
