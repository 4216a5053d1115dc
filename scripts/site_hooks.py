"""What mkdocs calls while it builds the site: for links that leave docs/, and for what pages load."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s:#]+)(?:#[^)\s]*)?\)")
_LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)"""
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave the text of a link to a file of the repository that is no page: the site has no such file."""

    def within(match: re.Match[str]) -> str:
        goal = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), match[2]))
        return match[1] if goal.startswith("../") else match[0]

    return _LINK.sub(within, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that loads something from another place."""
    if loaded := set(_LOADED.findall(output)):
        raise ValueError(f"{page.file.src_uri} loads {', '.join(sorted(loaded))}: the site works offline.")
    return output
