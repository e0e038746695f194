"""The packages of the extra `instructions` and the data of NLTK, loaded by what needs them first.

NLTK's data are where NLTK looks for them: in the folders of `NLTK_DATA`, in `~/nltk_data` and in a
few folders of the system.
"""

from collections.abc import Collection, Mapping
from contextlib import redirect_stdout
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from mbt_cli.errors import MbtError, UsageError, VerificationError

PUNKT = "punkt_tab"
"""NLTK's model of English sentences."""
STOPWORDS = "stopwords"
"""NLTK's lists of stop words."""
TAGGER = "averaged_perceptron_tagger_eng"
"""NLTK's tagger of parts of speech."""

_PLACES: Mapping[str, str] = {
    PUNKT: f"tokenizers/{PUNKT}/english/",
    STOPWORDS: f"corpora/{STOPWORDS}/english",
    TAGGER: f"taggers/{TAGGER}/",
}
_NO_TAGGER = (
    f"NLTK's data `{TAGGER}` are missing, which tell whether a word is a verb",
    f"run `mbt data fetch MANIFEST`, or `python -m nltk.downloader {TAGGER}`",
)


@lru_cache(maxsize=16)
def package(name: str) -> Any:
    """A module of a package of the extra.

    Raises:
        UsageError: The package is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise _not_installed(name.partition(".")[0]) from error


def require(packages: Collection[str], data: Collection[str]) -> None:
    """UsageError for the first of the packages and data that this machine lacks."""
    for name in packages:
        if find_spec(name) is None:
            raise _not_installed(name)
    for name in data:
        if data_path(name) is None:
            raise _no_data(name)


def data_path(name: str) -> Path | None:
    """Where NLTK finds some of its data; None if it does not.

    Raises:
        UsageError: NLTK is not installed.
    """
    try:
        return Path(str(package("nltk.data").find(_PLACES[name])))
    except LookupError:
        return None


def fetch_data(name: str) -> Path:
    """Download some of NLTK's data by its own downloader, into the folder that it chooses.

    Raises:
        MbtError: The download failed.
        UsageError: NLTK is not installed.
    """
    with redirect_stdout(StringIO()) as said:  # it prints what fails
        package("nltk.downloader").download(name, quiet=True)
    if (path := data_path(name)) is None:
        why = " ".join(said.getvalue().replace("[nltk_data]", "").split())
        raise MbtError(
            f"NLTK's downloader did not get `{name}`: {why}",
            hint="copy the data from a machine that has them, and set NLTK_DATA to their folder",
        )
    return path


@lru_cache(maxsize=1)
def sentence_splitter() -> Any:
    """NLTK's Punkt for English; UsageError if its data are missing."""
    splitter = package("nltk.tokenize.punkt").PunktTokenizer
    try:
        return splitter("english")
    except LookupError as error:
        raise _no_data(PUNKT) from error


@lru_cache(maxsize=1)
def word_splitter() -> Any:
    """NLTK's tokenizer of words within a sentence."""
    return package("nltk.tokenize.destructive").NLTKWordTokenizer()


@lru_cache(maxsize=1)
def word_pattern() -> Any:
    """The pattern of words of `regex`, which NLTK uses: a vowel sign in Hindi parts no word."""
    return package("regex").compile(r"\w+")


@lru_cache(maxsize=1)
def stop_words() -> frozenset[str]:
    """NLTK's English stop words; UsageError if they are missing."""
    try:
        return frozenset(package("nltk.corpus").stopwords.words("english"))
    except LookupError as error:
        raise _no_data(STOPWORDS) from error


@lru_cache(maxsize=1)
def languages() -> Any:
    """The factory of langdetect's detectors, each with the seed 0.

    The languages are in the order of their names: langdetect has them in that of the folder, which
    is another one on each machine.
    """
    module = package("langdetect.detector_factory")
    profiles = (p for p in Path(module.PROFILES_DIRECTORY).iterdir() if p.name[0] != ".")
    factory = module.DetectorFactory()
    factory.load_json_profile([path.read_text("utf-8") for path in sorted(profiles)])
    factory.set_seed(0)
    return factory


@lru_cache(maxsize=1)
def tagger() -> Any:
    """NLTK's tagger of English; VerificationError if its data are missing."""
    kind = package("nltk.tag.perceptron").PerceptronTagger
    try:
        return kind()
    except LookupError as error:
        message, hint = _NO_TAGGER
        raise VerificationError(message, hint=hint) from error


def part_of_speech(tokens: list[str]) -> str:
    """The tag of the first word of a text, such as VB; the other words tell what it is.

    Raises:
        VerificationError: The tagger's data are missing: no verdict is possible.
    """
    tags: list[tuple[str, str]] = tagger().tag(tokens)
    return tags[0][1]


def _not_installed(name: str) -> UsageError:
    return UsageError(
        f"the package `{name}` is needed to check instructions",
        hint='run `pip install "mbt-cli[instructions]"`',
    )


def _no_data(name: str) -> UsageError:
    return UsageError(
        f"NLTK's data `{name}` are needed to check instructions",
        hint="run `mbt data fetch MANIFEST`, or set NLTK_DATA to a folder that has them",
    )
