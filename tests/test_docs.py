"""What README and docs/ name exists: links, files, functions, commands, options, make targets, SQL and Python imports."""

import re
from pathlib import Path

import pytest

from flows.cli.app import app
from storage.lake import catalog
from storage.settings import Settings

PROJECT = Path(__file__).parents[1]
NAMES = ("README.md", "RESULTS.md", "deploy/README.md", "dreamshard/workloads/data/SOURCES.md")
PAGES = sorted([*(PROJECT / "docs").glob("*.md"), *(PROJECT / name for name in NAMES)])
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))


def code(page: Path, language: str = r"\w*") -> list[str]:
    """The fenced blocks of a page and, where no language is asked for, its inline code."""
    text = page.read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return blocks + (inline if language == r"\w*" else [])


@each_page
def test_every_relative_link_and_path_leads_to_a_file(page):
    text = page.read_text()
    links = re.findall(r"\]\((?!http|#)([^)\s#]+)[^)\s]*\)", text)
    paths = re.findall(r"`((?:dreamshard|storage|flows|tests|docs|deploy)/[\w./-]*)`", text)
    assert not [link for link in links if not (page.parent / link).exists()]
    assert not [path for path in paths if not (PROJECT / path).exists()]


@each_page
def test_every_command_has_the_options_that_a_page_gives_it(page):
    commands = {name: app[name] for name in app if not name.startswith("-")}
    calls = re.findall(r"""(?<![\w./"])(?<!from |port )dreamshard ([a-z][a-z-]*)( [^\n#]*|)""", "\n".join(code(page)))
    for name, rest in calls:
        assert name in commands, f"dreamshard {name}"
        known = {option for argument in commands[name].assemble_argument_collection() for option in argument.names}
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest)) <= {*known, "--home", "--debug", "--help"}, (
            f"dreamshard {name}{rest}"
        )


@each_page
def test_every_make_target_and_module_that_a_page_runs_exists(page):
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), flags=re.MULTILINE))
    text = "\n".join(code(page))
    assert set(re.findall(r"^make ([a-z-]+)", text, flags=re.MULTILINE)) <= targets
    for module in re.findall(r"python3? -m ((?:dreamshard|storage|flows|tests)[\w.]*)", text):
        path = PROJECT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_catalog_answers_every_query_of_the_pages(tmp_path):
    queries = [query for page in PAGES for block in code(page) for query in re.findall(r'sql "([^"]+)"', block)]
    queries = [query for query in queries if "..." not in query]
    assert len(queries) >= 4
    settings = Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path)})
    with catalog.connect(settings) as connection:
        for query in queries:
            connection.sql(query)


def test_every_column_that_the_catalog_page_lists_is_in_its_view(tmp_path):
    rows = re.findall(
        r"^\| `(\w+)` \| [^|]* \| (.*) \|$", (PROJECT / "docs/catalog.md").read_text(), flags=re.MULTILINE
    )
    assert {name for name, _ in rows} == set(catalog.VIEWS)
    with catalog.connect(Settings.from_environment({"DREAMSHARD_HOME": str(tmp_path)})) as connection:
        for view, columns in rows:
            known = set(connection.sql(f"select * from {view}").columns)
            assert set(re.findall(r"`(\w+)`", columns)) <= known, view


def test_every_function_in_the_architecture_is_in_its_file():
    text = (PROJECT / "docs/architecture.md").read_text()
    named = re.findall(r"`([\w./-]+\.py)`:((?: `\w+`,?)+)", text)
    assert len(named) > 30
    for path, names in named:
        source = (PROJECT / path).read_text()
        for name in re.findall(r"\w+", names):
            assert re.search(rf"(def|class) {name}\b|^\s*{name}\b.*=", source, flags=re.MULTILINE), f"{name} in {path}"
