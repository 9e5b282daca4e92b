"""Lays the site out as the repository: README and RESULTS at the top, pages in docs/, and every file that they link to."""

import re
from pathlib import Path
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs/*.md", "docs/pictures/*", "docs/examples/*")
LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)")


@event_priority(100)  # before plugins that look for notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the repository."""
    for file in list(files.documentation_pages() + files.media_files()):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    waiting, known = [ROOT / name for name in ("README.md", "RESULTS.md", "CHANGELOG.md")], set()
    waiting += [path for folder in FOLDERS for path in ROOT.glob(folder)]
    while waiting:
        path = waiting.pop()
        if path in known or not path.is_file():
            continue
        known.add(path)
        files.append(File(str(path.relative_to(ROOT)), str(ROOT), config.site_dir, config.use_directory_urls))
        if path.suffix == ".md":
            waiting += [(path.parent / unquote(link)).resolve() for link in LINK.findall(path.read_text())]
    return files
