"""Count the ten patterns of unclear English in docstrings, comments, messages and pages; a count may only fall.

python -m tests.english           exits with 1 if a pattern occurs more often than `english.json` says
python -m tests.english --list    prints every occurrence
python -m tests.english --write   keeps the counts of now
"""

import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1]
COUNTS = Path(__file__).with_suffix(".json")
PACKAGES = ("dreamshard", "storage", "flows")
PAGES = ("README.md", "RESULTS.md", "CHANGELOG.md", "deploy/README.md", "docs/*.md")
PROSE = {
    "`what` as a noun": r"(?:^|[.:;|#(\"] *|\b(?:of|for|by|from|with|in|to|than|on|as|is|are|and) )"
    r"what\b(?!-if| to do)(?![^.]*\?)",
    "`those of`, `that of`": r"\b(?:those|that) of\b",
    "`where` for if or when": r"\bwhere (?:it|they|there|that|this|one|nothing|none|no|both|all|neither|known)\b",
    "`of which`, `whose`": r"\b(?:of|for|in|by|from|with|at) which\b|\bwhose\b",
    "passives of saying": r"\b(?:is|are|was|were|be|been) (?:told|asked|said|survived|heard|spoken)\b",
    "negative subjects": r"\b(?:nobody|no one|nothing|no [a-z]+) (?:is|are|was|were|can|may|has|reads|says)\b",
    "`but for`, `else`": r"\bbut for\b|[,;] else\b|\bor else\b",
    "quaint words": r"\b(?:anew|beside|beyond doubt|by itself|by themselves|learnt|likewise|meanwhile|in the meantime"
    r"|on the mean|whoever|nevertheless|thereby|hence|upon)\b",
    "history": r"\b(?:earlier releases?|since then|no longer|used to be|formerly)\b",
}
NAMES = {
    "participles as names": r"^\s*(?:def|class) _?[a-z]+ed\b",
    "test names of more than 60 characters": r"^def test_\w{56,}\(",
}


def texts() -> Iterator[tuple[str, int, str]]:
    """File, line and text of every comment, every string of several words, and every line of a page outside code blocks."""
    for page in (page for pattern in PAGES for page in PROJECT.glob(pattern)):
        prose = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.M | re.S)
        yield from ((str(page.relative_to(PROJECT)), i, line) for i, line in enumerate(prose.split("\n"), 1))
    for path in sources():
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            is_text = token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type].startswith(
                "FSTRING"
            )
            if is_text and " " in token.string:
                lines = enumerate(token.string.split("\n"), token.start[0])
                yield from ((str(path.relative_to(PROJECT)), number, line) for number, line in lines)


def sources(*folders: str) -> Iterator[Path]:
    """Python files of the packages, or of these folders."""
    return (path for folder in folders or PACKAGES for path in sorted((PROJECT / folder).rglob("*.py")))


def main() -> int:
    """Compare, list or write the counts."""
    found: Counter[str] = Counter(dict.fromkeys((*PROSE, *NAMES), 0))
    code = (
        (str(path), i, line)
        for path in sources(*PACKAGES, "tests")
        for i, line in enumerate(path.read_text().split("\n"), 1)
    )
    for patterns, lines in ((PROSE, texts()), (NAMES, code)):
        for path, number, line in lines:
            for name, pattern in patterns.items():
                count = len(re.findall(pattern, line, flags=re.IGNORECASE if patterns is PROSE else 0))
                found[name] += count
                if count and "--list" in sys.argv:
                    print(f"{path}:{number}: {name}: {line.strip()}")
    said = [json.loads(path.read_text()).values() for path in (PROJECT / "tests" / "messages").glob("*.json")]
    found["errors of more than 25 words"] = sum(
        len(text.split()) > 25 for texts_of in said for each in texts_of for text in each
    )
    if "--write" in sys.argv:
        COUNTS.write_text(json.dumps(found, indent=1) + "\n")
    more = {name: count for name, count in found.items() if count > json.loads(COUNTS.read_text())[name]}
    print(
        f"english: {sum(found.values())} occurrences"
        + "".join(f"; {n} of {name}, too many" for name, n in more.items())
    )
    return bool(more)


if __name__ == "__main__":
    sys.exit(main())
