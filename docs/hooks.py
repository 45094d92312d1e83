"""What the site does with links that leave it: Markdown in the repository may point at files that are no pages.

A link to a folder, or to a file outside docs/, becomes its path as text, or a link into the repository if mkdocs.yml
names one (`repo_url`). A link to something that is not there stays as it is, and the strict build refuses it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """The page's text with such links replaced."""
    here = Path(page.file.abs_src_path).parent

    def replaced(match: re.Match[str]) -> str:
        target = (here / match["path"]).resolve()
        if not target.exists() or (target.is_file() and inside(target)):
            return match[0]
        path = target.relative_to(ROOT).as_posix()
        if config.get("repo_url"):
            return f"[{match['text']}]({config['repo_url'].rstrip('/')}/blob/main/{path})"
        text = match["text"].strip("`")
        return f"`{path}`" if text in (path, target.name, match["path"]) else f"{match['text']} (`{path}`)"

    return LINK.sub(replaced, markdown)


def inside(target: Path) -> bool:
    """Whether the site has this file."""
    return target.is_relative_to(DOCS)
