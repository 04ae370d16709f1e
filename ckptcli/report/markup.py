"""HTML and SVG as text. What a store holds passes through `escape`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from ckptcli.text import plain


def escape(value: object) -> str:
    """A value as text inside of an element or an attribute."""
    return html.escape(plain(str(value)))


def element(name: str, content: str = "", **attributes: object) -> str:
    """An element around `content`, which is markup already. In names of attributes `_` is `-`; what is None is left out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items() if value is not None
    )
    return f"<{name}{told}>{content}</{name}>"


def section(identity: str, title: str, *parts: str, remark: str = "") -> str:
    """A part of the page with a heading of its own, left out if it is empty."""
    body = "\n".join(part for part in parts if part)
    if not body:
        return ""
    told = element("p", escape(remark), class_="quiet") if remark else ""
    return element("section", f"{element('h2', escape(title), id=identity)}\n{told}{body}", aria_labelledby=identity)


def facts(pairs: Mapping[str, object]) -> str:
    """Names and values; what is empty is left out."""
    shown = {name: value for name, value in pairs.items() if value not in (None, "")}
    items = "".join(element("div", element("dt", escape(name)) + element("dd", escape(value))) for name, value in shown.items())
    return element("dl", items, class_="facts")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), caption: str = "") -> str:
    """A table whose cells are markup already. Columns named in `right` are numbers."""
    classes = ["number" if name in right else None for name in head]
    top = "".join(element("th", escape(name), scope="col", class_=kind) for name, kind in zip(head, classes, strict=True))
    body = "".join(
        element("tr", "".join(element("td", cell, class_=kind) for cell, kind in zip(row, classes, strict=True))) for row in rows
    )
    told = element("caption", escape(caption)) if caption else ""
    return element("div", element("table", f"{told}<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"), class_="scroll")


def picture(width: float, height: float, label: str, *shapes: str) -> str:
    """An SVG image that scales with the page, with a description for who cannot see it."""
    inside = element("title", escape(label)) + "".join(shapes)
    return element("svg", inside, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label)
