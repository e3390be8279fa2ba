"""Pages of the site that are not files of docs/: the README, other Markdown files, and the references.

mkdocs calls these functions (mkdocs.yml, hooks). Links between Markdown files are written for the repository,
where GitHub follows them. On the site they lead to the pages that the files become; a link to a file that is
no page becomes plain text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

from bert_jax import cli

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "AGENTS.md",
    "CHANGELOG.md",
    "benchmarks/results/*",
)
_LINK = re.compile(r"\[([^\[\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Adds the pages that are not files of docs/."""
    sources = [path for pattern in PAGES for path in sorted(REPOSITORY.glob(pattern)) if path.is_file()]
    kept = {path.relative_to(REPOSITORY).as_posix(): path for path in sources}
    pages = {f"docs/{file.src_uri}" for file in files} | set(kept)
    for name, path in kept.items():
        content = path.read_bytes()
        if path.suffix == ".md":
            content = relink(content.decode(), name, pages).encode()
        files.append(File.generated(config, _site_path(name), content=content))
    packages = sorted(path.parent for path in (REPOSITORY / "bert_jax").glob("*/__init__.py"))
    for package in (REPOSITORY / "bert_jax", *packages, REPOSITORY / "data_pipelines"):
        name = ".".join(package.relative_to(REPOSITORY).parts)
        options = "" if name == "bert_jax" else "\n    options:\n      show_submodules: true"
        content = f"# {name}\n\n::: {name}{options}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    return files


def commands_page() -> str:
    """Returns the page with the help of every command."""
    parts = [
        "# Commands and flags\n\nWhat `bert-jax COMMAND --help` prints. The fields that `--config.a.b=V` "
        "sets are in [the config reference](../config.md).\n"
    ]
    parts += [f"## {command}\n\n```text\n{cli.help_of(command)}\n```\n" for command in cli.COMMANDS]
    return "\n".join(parts)


def on_page_markdown(markdown, page, files, **_):
    """Returns the text of a page of docs/ with the links of the site."""
    if page.file.generated_by:
        return markdown
    pages = {f"docs/{file.src_uri}" for file in files if not file.generated_by}
    pages |= {_repository_path(file.src_uri) for file in files if file.generated_by}
    return relink(markdown, f"docs/{page.file.src_uri}", pages)


def relink(markdown: str, source: str, pages: set[str]) -> str:
    """Returns a page's Markdown with links that are relative to its place on the site.

    Args:
        markdown: the text, whose links are relative to `source`.
        source: the path of the page's file in the repository.
        pages: the paths in the repository of all files that are on the site.
    """

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path not in pages:
            return text
        start = posixpath.dirname(_site_path(source)) or "."
        return f"[{text}]({posixpath.relpath(_site_path(path), start)}{anchor})"

    return _LINK.sub(link, markdown)


def _site_path(path: str) -> str:
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def _repository_path(path: str) -> str:
    return "README.md" if path == "index.md" else path
