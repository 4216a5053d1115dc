"""Check the Markdown files of the repository: links, anchors, commands and Python examples.

Prints one line per fault, ``FILE:LINE: what is wrong``, and ends with status 1 if there was one. A fault is a
relative link to a file or heading that does not exist, a ``make`` target that the Makefile lacks, a block
that is never closed, or a Python example that does not parse.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("*.md", "docs/**/*.md", "framework/**/*.md", "plugins/**/*.md", "contrib/**/*.md", "tests/**/*.md")

FENCE = re.compile(r"^\s*(```+|~~~+)\s*([\w-]*)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")
CODE = re.compile(r"`([^`]+)`")
MAKE = re.compile(r"(?:^|\s)make ([a-z][a-z-]*)")


class Block(NamedTuple):
    """A fenced block: its language, the line it starts on, and its text."""

    language: str
    line: int
    text: str


class Page(NamedTuple):
    """A Markdown file taken apart: numbered lines of prose, and fenced blocks."""

    prose: list[tuple[int, str]]
    blocks: list[Block]


def read(path: Path) -> Page:
    """Take a file apart."""
    prose: list[tuple[int, str]] = []
    blocks: list[Block] = []
    fence, language, start, inside = "", "", 0, list[str]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        mark = FENCE.match(line)
        if fence:
            if line.strip() == fence:
                blocks.append(Block(language, start, textwrap.dedent("\n".join(inside))))
                fence = ""
            else:
                inside.append(line)
        elif mark:
            fence, language, start, inside = mark[1], mark[2], number, []
        else:
            prose.append((number, line))
    if fence:
        blocks.append(Block("unclosed", start, ""))
    return Page(prose, blocks)


def anchors(page: Page) -> set[str]:
    """The anchors of the headings, made as GitHub makes them; a repeated one gets a number."""
    found: set[str] = set()
    for _, line in page.prose:
        heading = HEADING.match(line)
        if heading:
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            count = 1
            name = anchor
            while name in found:
                name = f"{anchor}-{count}"
                count += 1
            found.add(name)
    return found


def link_faults(path: Path, page: Page) -> Iterator[tuple[int, str]]:
    """Relative links that lead nowhere."""
    for number, line in page.prose:
        bare = CODE.sub("", line)
        for target in [*LINK.findall(bare), *IMAGE.findall(bare)]:
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            goal = (path.parent / name).resolve() if name else path
            if not goal.exists():
                yield number, f"link to {target}: there is no such file"
            elif anchor and goal.suffix == ".md" and anchor not in anchors(read(goal)):
                yield number, f"link to {target}: no heading there has this anchor"


def command_faults(page: Page) -> Iterator[tuple[int, str]]:
    """``make`` targets that do not exist."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {
        name for names in re.findall(r"^([a-z][a-z -]*):", makefile, re.MULTILINE) for name in names.split()
    }
    lines = [(number, code) for number, line in page.prose for code in CODE.findall(line)]
    for block in page.blocks:
        if block.language in {"console", "sh", "bash", "shell"}:
            lines += enumerate(block.text.splitlines(), block.line + 1)
    for number, line in lines:
        for target in MAKE.findall(line):
            if target not in targets:
                yield number, f"make {target}: the Makefile has no such target"


def example_faults(page: Page) -> Iterator[tuple[int, str]]:
    """Blocks that do not end, and Python examples that do not parse."""
    for block in page.blocks:
        if block.language == "unclosed":
            yield block.line, "this block is never closed"
        elif block.language == "python":
            try:
                ast.parse(block.text)
            except SyntaxError as error:
                yield block.line + (error.lineno or 1), f"Python example: {error.msg}"


def main() -> int:
    """Check every file and return the exit status."""
    paths = sorted({path for place in PLACES for path in ROOT.glob(place) if not path.is_symlink()})
    faults = 0
    for path in paths:
        page = read(path)
        for number, text in sorted([*link_faults(path, page), *command_faults(page), *example_faults(page)]):
            print(f"{path.relative_to(ROOT)}:{number}: {text}")
            faults += 1
    print(f"{len(paths)} Markdown files checked, {faults or 'no'} fault{'' if faults == 1 else 's'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
