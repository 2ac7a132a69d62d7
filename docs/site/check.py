"""Whether the built site is whole: every link leads somewhere, anchors too, and no page fetches anything from elsewhere.

python docs/site/check.py build/site
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Of these a browser fetches what they name; of others it does when somebody follows the link.
FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}
#: Links that are for other programs: the page's own address, once the site is published.
UNFETCHED_RELATIONS = {"canonical", "alternate", "prev", "next"}


class Page(HTMLParser):
    """The links and the anchors of a page, and what a browser fetches with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.fetched: set[str] = set(re.findall(r"(?:@import|url\()\s*[\"']?(https?://[^\"')\s]+)", text))
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attributes}
        self.anchors |= {of[name] for name in ("id", "name") if name in of}
        for name in ("href", "src"):
            if name in of:
                self.links.add(of[name])
                if (tag, name) in FETCHED and not UNFETCHED_RELATIONS & set(of.get("rel", "").split()):
                    self.fetched.add(of[name])


def faults_of(site: Path) -> tuple[list[str], int, int]:
    """What is wrong, and how many pages and links were looked at."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    faults, count = [] if pages else ["there is no page"], 0
    for path, page in pages.items():
        here = path.relative_to(site)
        faults += [f"{here} fetches {each}" for each in sorted(page.fetched) if urlsplit(each).netloc]
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":  # whose links are those of the site's address
                continue
            count += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                faults.append(f"{here}: {link} leads nowhere")
            elif target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].anchors:
                faults.append(f"{here}: {link} has no such anchor")
    return faults, len(pages), count


def main(folder: str) -> int:
    """Print what is wrong; 0 when nothing is."""
    faults, pages, links = faults_of(Path(folder).resolve())
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{folder}: {pages} pages, {links} links, {len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
