"""The docs say what the code does: links lead somewhere, and code, commands and names are real."""

import ast
import builtins
import contextlib
import functools
import importlib.util
import re
import shlex
import subprocess
import symtable
import sys
import textwrap
from pathlib import Path

import pytest

import gluon_gc
from gluon_gc import env
from gluon_gc.compression import parse, registry, users_of
from gluon_gc.compression.known_keys import ignored
from gluon_gc.env.variables import IGNORED, TABLE
from gluon_gc.launch.cli import launcher

ROOT = Path(__file__).parents[2]
NAMES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "example/README.md")
PAGES = [*(ROOT / name for name in NAMES), *sorted(ROOT.glob("docs/**/*.md"))]

OF_THE_READER = {"train.py"}  # scripts that pages speak of, and nobody has yet
NOT_OFFERED = {"--use-pretrained", "--teacher"}  # arguments that pages say are missing
OF_OTHERS = {"--network", "--nnodes", "--node-rank", "--rdzv-endpoint"}  # docker's, torchrun's
OF_MAILBOXES = "-m gluon_gc.mailbox"  # a command of gluon_gc, after "python"
UNREAD = "## Variables that nothing reads"  # the section that names some

_, _, EXTRAS = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")
EXTRAS = set(re.findall(r"^(\w+) = \[", EXTRAS.partition("\n[")[0], re.M))

BLOCK = re.compile(r"(?:^`([\w./]+)`:\n\n)?^( *)```(\w*)\n(.*?)^ *```$", re.S | re.M)


class Page:
    """The text of a page, its blocks of code, and the spans of code in its other text."""

    def __init__(self, path):
        self.path, self.text = path, path.read_text()
        found = BLOCK.findall(self.text)
        # The language, the code, and the file that the code is, or "".
        self.blocks = [(name, textwrap.dedent(code), file) for file, _, name, code in found]
        self.prose = BLOCK.sub("", self.text)
        spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", self.prose)
        self.spans = [" ".join(span.split()) for span in spans]

    def code(self, language):
        """The blocks in a language that are not files, which have tests of their own."""
        return [code for name, code, file in self.blocks if name == language and not file]


# Links


def anchors(page):
    """What GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.*)$", page.prose, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.prose):
        file, _, anchor = target.partition("#")
        path = (page.path.parent / file) if file else page.path
        if "://" not in target and not path.exists():
            yield f"{target}: there is no {file}"
        elif anchor and path.suffix == ".md" and anchor not in anchors(Page(path)):
            yield f"{target}: {file or 'the page'} has no such heading"


# Python


def unbound(code):
    """Names that a block takes from elsewhere."""

    def below(table):
        yield table
        for child in table.get_children():
            yield from below(child)

    module = symtable.symtable(code, "page", "exec")
    bound = {s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported()}
    used = {s.get_name() for t in below(module) for s in t.get_symbols() if s.is_global()}
    used |= {s.get_name() for s in module.get_symbols() if s.is_referenced()}
    return used - bound - set(dir(builtins))


def needs_torch(code):
    """Whether a block imports PyTorch, where there may be none."""
    return re.search(r"import (gluon_gc\.)?torch", code) and not importlib.util.find_spec("torch")


def broken_python(page):
    """A block compiles, and one that needs nothing from elsewhere runs."""
    for name, code, file in page.blocks:
        if name != "python":
            continue
        try:
            compile(code, str(page.path), "exec")
        except SyntaxError as error:
            yield f"{error}: {code}"
            continue
        if not file and not unbound(code) and not needs_torch(code):
            run = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=100
            )
            if run.returncode:
                yield f"{run.stderr[-500:]}: {code}"


def public_names(package):
    """Return the names in a package's __all__. The package may not be importable here."""
    for node in ast.parse((ROOT / package / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError(f"{package} has no __all__")


def unknown_names(page):
    of_torch = public_names("gluon_gc/torch") if "import gluon_gc.torch as bps" in page.text else ()
    for name in re.findall(r"\bbps\.(\w+)", page.text):
        if not hasattr(gluon_gc, name) and name not in of_torch:
            yield f"bps.{name}"
    for name in re.findall(r"\btrainer\.(\w+)\(", page.text):
        if not hasattr(gluon_gc.DistributedTrainer, name):
            yield f"trainer.{name}"


def dictionaries(page):
    """Literal dictionaries, and whether they are whole: `"key": 1` is a part of one."""
    for code in [*page.code("python"), *page.spans]:
        for text in (code, "{" + code + "}"):
            with contextlib.suppress(SyntaxError):
                for node in ast.walk(ast.parse(text)):
                    if isinstance(node, ast.Dict) and node.keys:
                        with contextlib.suppress(ValueError):  # it is no literal
                            yield text == code, ast.literal_eval(node)
                break


def check_value(key, value):
    """A value of a key is what it may be for one of the compressors that have it."""
    problems = []
    for option in users_of(key).values() if isinstance(key, str) else ():
        try:
            return option.check(key, value)
        except (TypeError, ValueError) as problem:
            problems.append(problem)
    if problems:
        raise problems[0]


def wrong_params(page):
    """compression_params are what parse accepts, and parts of them what their keys may be."""
    for whole, given in dictionaries(page):
        try:
            if whole and {"compressor", "fp16"} & given.keys():
                parse(given, mu=0.9)
                if ignored(given):
                    yield f"{given}: ignored are {', '.join(ignored(given))}"
            elif not whole:
                for key, value in given.items():
                    check_value(key, value)
        except (TypeError, ValueError, KeyError) as error:
            yield f"{given}: {error.args[0]}"


# Commands


def commands(page):
    """The commands of shell blocks, and of code in the prose that is one, as words."""
    programs = r"python|pip|bpslaunch|make|horovodrun|mpirun|torchrun|example/\S+\.sh"
    starts = rf"(\w+=\S+ +)*({programs})\b"
    lines = [span for span in page.spans if re.match(starts, span)]
    for code in page.code("sh"):
        lines += code.replace("\\\n", " ").splitlines()
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = []
        for word in [*lexer, ";"]:
            if word in (";", "&", "&&", "|", "||"):
                yield words
                words = []
            else:
                words.append(word)


@functools.lru_cache(maxsize=None)
def arguments_of(script):
    """The options that the --help of a script, or of "-m MODULE", lists."""
    run = subprocess.run(
        [sys.executable, *script.split(), "--help"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", run.stdout))


def wrong_command(words):
    """Return the mistake in a command, or None."""
    while words and (re.match(r"\w+=", words[0]) or words[0] in ("do", "sudo")):
        words = words[1:]
    program, *rest = words or [""]
    if program in ("horovodrun", "mpirun"):
        return wrong_command(rest[rest.index("python") :] if "python" in rest else [])
    if program == "torchrun":
        scripts = [i for i, word in enumerate(rest) if word.endswith(".py")]
        script = rest[scripts[0] :] if scripts else []
        if not importlib.util.find_spec("torch"):
            script = script[:1]  # its --help needs PyTorch
        return wrong_command(["python", *script] if script else [])
    if program == "bpslaunch":
        try:
            return wrong_command(launcher._parse(rest).command)
        except env.ConfigurationError as error:
            return str(error)
    if program == "pip":
        own = [word for word in rest if not re.match(r"\w+\[", word)]  # else another package
        extras = {name for word in own for name in re.findall(r"\w+", word.partition("[")[2])}
        unknown = extras - EXTRAS
        return f"no extra {unknown}" if unknown else None
    if program == "make":
        dry = subprocess.run(["make", "-n", *rest], cwd=ROOT, capture_output=True, encoding="utf-8")
        return dry.stderr if dry.returncode else None
    if program == "python" and rest[:1] == ["-m"] and " ".join(rest[:2]) != OF_MAILBOXES:
        return None if importlib.util.find_spec(rest[1]) else f"no module {rest[1]}"
    if program.endswith(".sh") and not (ROOT / program).exists():
        return f"no file {program}"
    if program != "python" or rest[0] == "-c" or rest[0] in OF_THE_READER:
        return None
    if rest[0] == "-m":
        rest = [OF_MAILBOXES, *rest[2:]]
    elif not (ROOT / rest[0]).exists():
        return f"no file {rest[0]}"
    if "/pytorch/" in rest[0] and not importlib.util.find_spec("torch"):
        return None  # its --help needs PyTorch
    given = {word.partition("=")[0] for word in rest[1:] if re.match(r"--?[a-z]", word)}
    unknown = given and given - arguments_of(rest[0])
    return f"{rest[0]} has no {unknown}" if unknown else None


def wrong_commands(page):
    for code in page.code("sh"):
        run = subprocess.run(["bash", "-n"], input=code, capture_output=True, encoding="utf-8")
        if run.returncode:
            yield f"{run.stderr}: {code}"
            return
    for words in commands(page):
        problem = wrong_command(words)
        if problem:
            yield f"{problem}: {' '.join(words)}"


# Scripts with arguments for the keys of compressors and algorithms, and bpslaunch.
WITH_ARGUMENTS_OF_KEYS = (
    "bpslaunch.py",
    "example/mnist/train_mnist.py",
    "example/language_model/train.py",
)
SCRIPTS = [
    *ROOT.glob("example/*.py"),
    *ROOT.glob("example/*/*.py"),
    *ROOT.glob("benchmark/*.py"),
    *ROOT.glob("gluon_gc/plan/*.py"),
]


@functools.lru_cache(maxsize=None)
def added_arguments():
    """The options that scripts and their modules add to parsers by a name in the source."""
    nodes = [node for path in SCRIPTS for node in ast.walk(ast.parse(path.read_text()))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    added = [call for call in calls if getattr(call.func, "attr", "") == "add_argument"]
    names = [name for call in added for name in call.args]
    return {name.value for name in names if isinstance(name, ast.Constant)}


def unknown_arguments(page):
    """Options that the prose speaks of are those of some script that takes options."""
    spoken = {span.split()[0] for span in page.spans if re.match(r"--[a-z]", span)}
    unknown = spoken - NOT_OFFERED - OF_OTHERS - added_arguments()
    for script in (*WITH_ARGUMENTS_OF_KEYS, OF_MAILBOXES):
        if unknown:  # the others need not be asked
            unknown -= arguments_of(script)
    yield from sorted(unknown)


# Variables


def wrong_variables(page):
    """Variables that a page names are in the table, but for those that it says nothing reads."""
    known = {name for variable in TABLE for name in (variable.name, variable.older)}
    text = page.text
    for _, code, file in page.blocks:
        text = text.replace(code, "") if file else text
    text, _, unread = text.partition(UNREAD)
    unread, _, rest = unread.partition("\n## ")

    def named(text):
        return set(re.findall(r"\b(?:BYTEPS|DMLC|GLUON_GC|PS|MXNET)_[A-Z0-9_]+\b", text))

    yield from (f"{name} is not in the table" for name in sorted(named(text + rest) - known))
    yield from (f"{name} is read" for name in sorted(named(unread) & known))


CHECKS = [
    broken_links,
    broken_python,
    unknown_names,
    wrong_params,
    wrong_commands,
    unknown_arguments,
    wrong_variables,
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.parametrize("check", CHECKS)
def test_a_page_has_nothing_that(check, page):
    assert not list(check(Page(page)))


@pytest.mark.parametrize(
    "check, text, problem",
    [
        (broken_links, "[a](nowhere.md)", "nowhere.md"),
        (broken_links, "# A title\n[a](#a-title) [b](#another)", "#another"),
        (broken_python, "```python\nif\n```", "if"),
        (broken_python, "1. a\n\n   ```python\n   import gluon_gc.nothing\n   ```", "nothing"),
        (unknown_names, "`bps.innit()`", "bps.innit"),
        (unknown_names, "`trainer.stepp(1)`", "trainer.stepp"),
        (wrong_params, '`{"compressor": "onebits"}`', "onebits"),
        (wrong_params, '```python\nf(x, {"compressor": "topk"})\n```', "'k'"),
        (wrong_params, 'with `"ef": "vanila"`', "vanila"),
        (wrong_commands, "```sh\nfor x in\n```", "syntax error"),
        (wrong_commands, "```sh\nA=b python \\\n  nothing.py\n```", "nothing.py"),
        (wrong_commands, "`python example/make_data.py --nothing`", "--nothing"),
        (wrong_commands, "`python -m nothing`", "nothing"),
        (wrong_commands, "`python -m gluon_gc.mailbox URL --nothing`", "--nothing"),
        (wrong_commands, "`pip install '.[mxnet,nothing]'`", "nothing"),
        (wrong_commands, "`bpslaunch --lokal python train.py`", "lokal"),
        (wrong_commands, "`bpslaunch --local python nothing.py`", "nothing.py"),
        (wrong_commands, "`horovodrun -np 4 python nothing.py`", "nothing.py"),
        (wrong_commands, "`torchrun --nproc-per-node 4 nothing.py`", "nothing"),
        (wrong_commands, "```sh\nls && make nothing\n```", "nothing"),
        (wrong_commands, "```sh\nexample/nothing.sh a\n```", "nothing.sh"),
        (unknown_arguments, "`--nothing 3`", "--nothing"),
        (wrong_variables, "`BYTEPS_NOTHING`", "BYTEPS_NOTHING"),
        (wrong_variables, f"{UNREAD}\n\n`BYTEPS_NUMA_ON`\n\n## B", "BYTEPS_NUMA_ON"),
    ],
)
def test_every_check_finds_what_is_wrong(tmp_path, check, text, problem):
    path = tmp_path / "page.md"
    path.write_text(text + "\n")
    (found,) = check(Page(path))
    assert problem in found


def test_the_variables_that_nothing_reads_are_those_that_no_warning_names():
    _, _, unread = (ROOT / "docs" / "guides" / "migrating.md").read_text().partition(UNREAD)
    listed = re.findall(r"`(\w+)`", unread.partition("\n## ")[0])
    read = {variable.name for variable in TABLE}
    assert sorted(name for name in listed if name not in read) == sorted(IGNORED)


def test_the_reference_is_what_the_code_makes_it():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.PAGE.read_text() == generate.page(), "run python docs/generate.py"


def test_the_changelog_has_this_version_with_all_names_and_compressors():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(\S+)\] - (?:Unreleased|\d{4}-\d\d-\d\d)$", text, re.M)
    assert gluon_gc.__version__ in versions
    names = {name for name in gluon_gc.__all__ if name[0] not in "_" and "Error" not in name}
    assert not [name for name in sorted(names | {*registry}) if not re.search(rf"\b{name}\b", text)]
