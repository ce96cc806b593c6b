"""Hooks of the documentation site: add pages and files that are not in docs/.

Pages link to tests, sources and the README, which are outside docs/ and can be opened in the repository. The site has a
copy of each linked file below `source/`. The page of docstrings is generated from the public names of the package, so
that it is always complete.
"""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+|notebook\.ipynb|[\w/-]+\.json)((?:#[^)\s]*)?\))")
LIST_ITEM = re.compile(r"(- |\d+\. )")
LOADED_FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe)[^>]+src="https?://[^"]*|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]*href="https?://[^"]*"""
)
DOCSTRINGS = "reference/docstrings.md"
PUBLIC = "statebed"


def on_files(files: Files, config: Any) -> Files:
    """Add the page of docstrings and a copy of every file outside docs/ that a page links to."""
    files.append(File.generated(config, DOCSTRINGS, content=docstrings_page()))
    known = {file.src_uri for file in files}
    for page in [file for file in files if file.is_documentation_page() and file.src_uri != DOCSTRINGS]:
        text = (DOCS / page.src_uri).read_text(encoding="utf-8")
        for match in LINK.finditer(text):
            target = copied(page.src_uri, match.group(2))
            if target is not None and target[0] not in known:
                known.add(target[0])
                files.append(File.generated(config, target[0], content=target[1].read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to files outside docs/ at their copies; hide the sidebar of pages that have no siblings."""
    if page.parent is None:
        page.meta.setdefault("hide", ["navigation"])

    def pointed(match: re.Match[str]) -> str:
        target = copied(page.file.src_uri, match.group(2))
        if target is None:
            return match.group(0)
        up = "../" * page.file.src_uri.count("/")
        return f"{match.group(1)}{up}{target[0]}{match.group(3)}"

    return LINK.sub(pointed, with_blank_lines_before_lists(markdown))


def with_blank_lines_before_lists(markdown: str) -> str:
    """Insert a blank line between a paragraph and a list, which this renderer requires, unlike others."""
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        above = lines[-1] if lines else ""
        follows_text = bool(above.strip()) and not above.startswith((" ", "<!--")) and not LIST_ITEM.match(above)
        if not fenced and LIST_ITEM.match(line) and follows_text:
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def on_post_build(config: Any) -> None:
    """Refuse pages that load anything from another host."""
    loading = [
        f"{path.relative_to(config.site_dir)}: {match.group()}"
        for path in sorted(Path(config.site_dir).rglob("*.html"))
        for match in LOADED_FROM_ELSEWHERE.finditer(path.read_text(encoding="utf-8"))
    ]
    if loading:
        raise PluginError("pages load from other hosts:\n" + "\n".join(loading))


def copied(page: str, link: str) -> tuple[str, Path] | None:
    """Return the path of the site's copy of a linked file, and the file; None for pages and missing files."""
    path = ((DOCS / page).parent / link).resolve()
    if not path.is_file() or (path.is_relative_to(DOCS) and path.suffix in {".md", ".svg", ".png"}):
        return None
    return f"source/{path.relative_to(ROOT)}.txt", path


def docstrings_page() -> str:
    """Return the page of docstrings, with one section per public name."""
    tree = ast.parse((ROOT / "src" / PUBLIC / "__init__.py").read_text(encoding="utf-8"))
    names = next(
        ast.literal_eval(node.value)
        for node in ast.walk(tree)  # type checkers alone read it
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["__all__"]
    )
    sections = [f"::: {PUBLIC}.{name}\n" for name in sorted(names, key=str.lower) if not name.startswith("_")]
    head = "# Docstrings\n\nEvery public name of the package, as `help()` shows it.\n"
    return "\n".join([head, *sections])
