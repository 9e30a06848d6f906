"""Options of a store as text: `region=eu-west-1`."""

from __future__ import annotations

from casque.errors import InvalidInputError


def parse_options(pairs: list[str]) -> dict[str, str]:
    """`["region=eu-west-1"]` as a mapping.

    Raises:
        InvalidInputError: not NAME=VALUE.
    """
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            # Only the name: the value may be a secret that somebody forgot to name.
            raise InvalidInputError("an option is written NAME=VALUE, for example --option region=eu-west-1")
        options[name] = value
    return options
