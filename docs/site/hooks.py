"""What MkDocs does not do by itself: the order of the pages, links out of the documents, diagrams, and twins in Markdown.

Needs no list of all pages: one that is in a folder stands behind the page of that name, in the order in which that page
links to them; one that nobody has put into a section stands among the guides (tests/house/test_site.py).
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

from postroom.cli.pages import SITE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOME = "index"
#: The sections, in the order in which a newcomer needs them. A page that is not there yet is left out.
SECTIONS = {
    "Tutorial": ["guide"],
    "How-to guides": [
        "install", "cli", "agents", "conversations", "people", "schedules", "limits", "board", "sessions", "pool", "inference",
        "files", "files-by-hand", "communications", "language", "checking", "search", "keeping", "web", "operations", "from",
    ],
    "Concepts": [
        "guarantees", "proof", "security", "compare", "glossary", "architecture", "design", "platforms", "dependencies",
    ],
    "Reference": ["reference"],
}  # fmt: skip
GUIDES = "How-to guides"

#: The Markdown of each page as the site has it, by its path.
_twins: dict[str, str] = {}


# Which page stands where


def ordered() -> dict[str, list[str]]:
    """The topics of each section: a page, then those in the folder of its name, as it links to them."""
    topics = sorted(page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md"))
    tops = [topic for names in SECTIONS.values() for topic in names]
    strays = [topic for topic in topics if topic != HOME and topic.partition("/")[0] not in tops]
    found = {
        section: [topic for name in names for topic in family(name, topics)] for section, names in SECTIONS.items()
    }
    found[GUIDES] += strays
    return found


def family(topic: str, topics: list[str]) -> list[str]:
    """A page and those in its folder, with theirs."""
    below = [other for other in topics if other.rpartition("/")[0] == topic]
    text = (DOCS / f"{topic}.md").read_text(encoding="utf-8") if topic in topics else ""
    links = [os.path.normpath(Path(topic).parent / link) for link in re.findall(r"\]\(([\w/.-]+)\.md", text)]
    below.sort(key=lambda other: links.index(other) if other in links else len(links))
    deeper = {other.rpartition("/")[0] for other in topics if other.startswith(f"{topic}/")}
    below += sorted(deeper - {topic} - set(below))  # a folder without a page of its name
    return [topic] * (topic in topics) + [each for other in below for each in family(other, topics)]


def menu(topics: list[str]) -> list[Any]:
    """The topics of a section for the menu: a page with a folder of its own is a menu in it, unless it is all of it."""
    items: list[Any] = []
    whole = topics[0] if all(topic.startswith(topics[0]) for topic in topics) else None
    for topic in topics:
        heads = [head for head in topics if topic.startswith(f"{head}/") and head != whole]
        below = [other for other in topics if other.startswith(f"{topic}/") and topic != whole]
        if below and not heads:
            items.append({title_of(topic): [{"Overview": f"{topic}.md"}, *(f"{other}.md" for other in below)]})
        elif not heads:
            items.append(f"{topic}.md")
    return items


def title_of(topic: str) -> str:
    text = (DOCS / f"{topic}.md").read_text(encoding="utf-8")
    return next(line[2:].strip() for line in text.splitlines() if line.startswith("# "))


def on_config(config: Any) -> Any:
    config["nav"] = [{"Home": f"{HOME}.md"}, *({section: menu(topics)} for section, topics in ordered().items())]
    config["site_url"] = SITE
    _twins.clear()
    return config


# Links to files that are not documents: programs, tests. The site has them as text.


def source_name(path: Path) -> str:
    """Where the site has a file, or a folder of files, of the repository."""
    return f"source/{path.relative_to(ROOT).as_posix()}.txt"


def source_text(path: Path) -> str:
    if path.is_file():
        return path.read_text(encoding="utf-8")
    files = sorted(each for each in path.rglob("*") if each.is_file() and each.suffix not in (".pyc", ".png"))
    return "\n\n".join(f"=== {each.relative_to(path)}\n\n{each.read_text(encoding='utf-8')}" for each in files)


def outside(topic: str, link: str) -> Path | None:
    """The file of the repository that a link of a page means, if that is no document."""
    path = Path(os.path.normpath((DOCS / topic).parent / link.partition("#")[0]))
    return path if path.is_relative_to(ROOT) and not path.is_relative_to(DOCS) else None


def links_of(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link and link[0] not in "#/"]


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for page in [page for page in files if page.is_documentation_page()]:
        for link in links_of(page.content_string):
            path = outside(page.src_uri, link)
            if path is not None and path.exists() and files.get_file_from_path(source_name(path)) is None:
                files.append(File.generated(config, source_name(path), content=source_text(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    here = page.file.src_uri
    up = "../" * here.count("/")

    def to_source(found: re.Match[str]) -> str:
        path = outside(here, found[1])
        return found[0] if path is None or not path.exists() else f"]({up}{source_name(path)})"

    _twins[here] = re.sub(r"\]\(([^)\s]+)\)", to_source, markdown)
    return _twins[here]


# Diagrams, drawn while the site is built


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    # a stroke inside code inside a table is written \\| for other readers of the Markdown, and shown so by this one
    content = re.sub(r"<td[^>]*>.*?</td>", lambda cell: cell[0].replace("\\|", "|"), content)
    content += f'<p class="twin"><a href="{Path(page.file.src_uri).name}">This page as Markdown</a></p>'
    return re.sub(r'<pre class="to-be-drawn"><code>(.*?)</code></pre>', drawn, content, flags=re.S)


def drawn(found: re.Match[str]) -> str:
    """A diagram as SVG inside the page; style.css gives it the page's colours."""
    from mermaidx import Diagram

    svg = Diagram(html.unescape(found[1])).svg().replace("my-svg", f"drawing-{found.start()}")
    return f'<div class="drawing" tabindex="0">{svg}</div>'


# Twins in Markdown, and the list of them for models


def on_post_page(output: str, page: Any, config: Any) -> str:
    # the second word keeps the theme from taking it for another language, and from looking for its sitemap
    twin = f'<link rel="alternate markdown" type="text/markdown" href="{Path(page.file.src_uri).name}">'
    return output.replace("</head>", f"{twin}</head>", 1)


def on_post_build(config: Any) -> None:
    for name, text in _twins.items():
        (Path(config["site_dir"]) / name).write_text(text, encoding="utf-8")
    (Path(config["site_dir"]) / "llms.txt").write_text(llms_text(config["site_description"]), encoding="utf-8")


def llms_text(about: str) -> str:
    """Every page with its first sentence, as models look for it."""
    parts = ["# Postroom", f"> {about}", "Every page is Markdown. `postroom help TOPIC` prints the same pages."]
    for section, topics in ordered().items():
        rows = [f"- [{title_of(topic)}]({topic}.md): {first_sentence(topic)}" for topic in topics]
        parts.append(f"## {section}\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def first_sentence(topic: str) -> str:
    """The first sentence of a page's text, without marks of Markdown."""
    text = re.sub(r"<!--.*?-->", "", (DOCS / f"{topic}.md").read_text(encoding="utf-8"), flags=re.S)
    prose = next((part for part in re.split(r"\n\s*\n", text) if re.match(r"[A-Za-z`\[*\"]", part)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split())).replace("**", "")
    return re.split(r"(?<=[.!?:])\s", plain)[0].rstrip(":")
