"""HTML and SVG that is safe against injection: everything that is not markup is escaped on its way in.

Names of entrypoints, zones and workers, and above all errors, are untrusted text.
"""

from __future__ import annotations

from html import escape
from typing import TypeAlias

VOID = frozenset({"meta", "br", "rect", "line", "circle", "path", "polyline", "polygon"})


class Markup(str):
    """Text that is markup. Made only by `tag` and `joined`, and from constants."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Markup | None"
Attribute: TypeAlias = "str | int | float | None"


def tag(name: str, *children: Child, **attributes: Attribute) -> Markup:
    """An element. `class_` is `class`, and an underscore a dash; None leaves a child or an attribute out.

    >>> tag("p", "1 < 2", class_="note", aria_label='"so"')
    '<p class="note" aria-label="&quot;so&quot;">1 &lt; 2</p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """
    >>> joined("a & b", tag("b", "c"), None)
    'a &amp; b<b>c</b>'
    """
    return Markup(
        "".join(one if isinstance(one, Markup) else escape(_text(one)) for one in children if one is not None)
    )


def _text(value: Child) -> str:
    # A tenth of a pixel is not visible, and pages are sent by mail.
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
