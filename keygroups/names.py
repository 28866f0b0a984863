"""The rules for names that become part of a path; the same rule applies to writers and readers of a name.

A name that leads out of its folder would write or remove files elsewhere. So names are checked when they are created,
and again when they are read, because stored data may be damaged or made by another program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from keygroups.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NameRule:
    """The rule for one kind of name.

    Parameters
    ----------
    pattern : re.Pattern
        The pattern that the whole name must match.
    bytes_max : int
        The most bytes of the name as UTF-8.
    allowed : str
        The rule in words, for errors.

    Examples
    --------
    >>> STATE_NAME.fits("visits"), STATE_NAME.fits("../visits"), STATE_NAME.fits(7)
    (True, False, False)
    """

    pattern: re.Pattern[str]
    bytes_max: int
    allowed: str

    def fits(self, name: object) -> bool:
        """Return whether a value is a name that follows the rule."""
        if not isinstance(name, str) or self.pattern.fullmatch(name) is None:
            return False
        return len(name.encode(errors="surrogatepass")) <= self.bytes_max

    def check(self, argument: str, name: object) -> None:
        """Check that a value is a name that follows the rule.

        Raises
        ------
        ConfigError
            It does not.
        """
        if not self.fits(name):
            raise ConfigError(argument, name, self.allowed)


STATE_NAME = NameRule(
    re.compile("[A-Za-z_][A-Za-z0-9_]*"),
    128,
    "use letters, digits and underscores, at most 128 of them, and no digit first",
)
"""The name of a keyed state. It is part of file names, and some readers use it as a column name."""

OPERATOR_STATE_NAME = NameRule(
    re.compile(r"[^/\\*?\[\]\x00-\x1f\x7f\ud800-\udfff]+"),
    200,
    r"an operator state's name has no '/', '\', '*', '?', '[', ']' or control characters, and 1 to 200 bytes as UTF-8",
)
"""The name of an operator state. It is part of a file name, so it must be neither a path nor a glob pattern."""

STEP_NAME = NameRule(
    re.compile("[A-Za-z0-9_][A-Za-z0-9_-]*"),
    64,
    "use letters, digits, '_' and '-', at most 64 of them, and no '-' first",
)
"""The name of a step of a job. It has no dot, so in `step.state` the first dot ends it."""

OPERATOR_ID = NameRule(
    re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*"), 255, "use letters, digits, '_', '.' and '-', at most 255 of them"
)
"""The id of an operator, which is the name of its folder."""

LINEAGE_NAME = NameRule(
    re.compile("[A-Za-z0-9_][A-Za-z0-9_.:-]*"), 64, "use letters, digits, '_', '.', ':' and '-', at most 64 of them"
)
"""A lineage, or the namespace that a user has chosen in its place: the first part of idempotency keys, up to a '/'."""

CODEC_NAME = NameRule(
    re.compile("[A-Za-z0-9_.-]+"), 128, "a codec is named by letters, digits, '_', '.' and '-', 128 at most"
)
"""The name of a codec, which is stored with each of its values."""

DATA_PATH = NameRule(
    re.compile(r"data(?:/(?!\.{1,2}(?:/|$))[^/\\\x00-\x1f\x7f\ud800-\udfff]+)+"),
    1024,
    "a data file lies below data/ in the operator's folder: no part of its path is '.', '..' or empty",
)
"""The path of a data file, relative to the folder of its operator."""


def in_step(step: str, name: str) -> str:
    """Return the name that a state of a step has in a job's snapshot.

    Examples
    --------
    >>> in_step("enrich", "visits")
    'enrich.visits'
    """
    return f"{step}.{name}"


def split_step(name: str) -> tuple[str, str]:
    """Return the step and the state of a name in a job's snapshot.

    Examples
    --------
    >>> split_step("source.topic.offsets")
    ('source', 'topic.offsets')
    """
    step, _, state = name.partition(".")
    return step, state
