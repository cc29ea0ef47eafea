"""Every option of every command: the command reads it, and its help says beside what it has an
effect; the parser refuses it where it has none."""

import argparse
import ast
from pathlib import Path

from helpers import commands
from helpers.cases import each
from helpers.syntax import syntax_tree, tree_of_file

import hypvision.cli
from hypvision.cli import COMMANDS, parser_of
from hypvision.io.errors import HypvisionError

FOLDER = Path(hypvision.cli.__file__).parent
TREES = {path.stem: tree_of_file(path) for path in sorted(FOLDER.glob("*.py"))}
NOT_READ = {"help", "local_rank"}  # the second is "set by some launchers; not used"
RULES = [(name, rule) for name in COMMANDS for rule in parser_of(name)._rules]


def functions(module):
    """The functions of a module of the package's commands, with those that it takes from others."""
    found = {}
    for node in TREES[module].body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = (module, node)
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module in TREES:
            others = functions(node.module)
            found |= {
                alias.name: others[alias.name] for alias in node.names if alias.name in others
            }
    return found


def read_by(name):
    """The names that a command reads of its arguments, also in functions that it calls: those of
    ``args.NAME``, and texts where names are given to ``getattr``."""
    module = COMMANDS[name].module or name.split()[0]
    run = hypvision.cli._part(name, "run")
    attributes, texts, seen = set(), set(), set()
    waiting = [(module, run.__name__)]
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        known = functions(place[0])
        if place[1] not in known:
            continue
        home, function = known[place[1]]
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                attributes |= {node.attr} if node.value.id == "args" else set()
            elif isinstance(node, ast.Name) and node.id in functions(home):
                waiting.append((home, node.id))
        if "getattr(args" in ast.unparse(function) or "refuse(" in ast.unparse(function):
            nodes = [node for node in ast.walk(TREES[home]) if isinstance(node, ast.Constant)]
            texts |= {node.value for node in nodes if isinstance(node.value, str)}
    return attributes, texts


@each("name", COMMANDS)
def test_a_command_reads_its_options_and_has_those_that_it_reads(name):
    options = {action.dest for action in parser_of(name)._actions} - NOT_READ
    options |= set(parser_of(name)._defaults)
    attributes, texts = read_by(name)
    assert not options - attributes - texts
    shared = {"source"} if name in ("fewshot base2new", "fewshot shots") else set()
    assert not attributes - options - shared


def test_the_walk_finds_what_nothing_reads(monkeypatch):
    module = syntax_tree("def run_lm_save(args):\n    print(args.config, args.no_such)")
    monkeypatch.setitem(TREES, "lm", module)
    attributes, texts = read_by("lm save")
    assert attributes == {"config", "no_such"} and not texts


def called(action):
    """What a user calls an argument."""
    return (action.option_strings or [action.metavar or action.dest])[0]


def value_of(action, avoid=()):
    """A value that an argument takes, none of ``avoid``."""
    if action.choices:
        return next(str(choice) for choice in action.choices if choice not in avoid)
    for text in ("a", "2", "64", "4", "cpu", "a=2"):
        try:
            return (action.type or str)(text) and text
        except (ValueError, argparse.ArgumentTypeError):
            continue
    raise AssertionError(f"{called(action)} takes none of these")


def refusal(name, *words, avoid=()):
    """The message with which the parser of a command refuses some arguments together, beside those
    that it needs, but not ``avoid``; empty if it takes them."""
    parser = parser_of(name)
    wanted = {}
    for action in parser._actions:
        chosen = [word for word in words if action.choices and word in action.choices]
        if chosen or called(action) in words:
            wanted[action] = [*chosen, value_of(action)][0]
    groups = [([action], action.required) for action in parser._actions]
    groups += [(g._group_actions, g.required) for g in parser._mutually_exclusive_groups]
    for actions, needed in groups:
        free = [action for action in actions if called(action) not in avoid]
        if needed and free and not wanted.keys() & {*actions}:
            wanted[free[0]] = value_of(free[0], avoid)
    line = []
    for action in parser._actions:  # those without a name in their order
        if action in wanted:
            line += [*action.option_strings[:1], *([] if action.nargs == 0 else [wanted[action]])]
    try:
        parser.parse_args(line)
    except HypvisionError as error:
        return str(error)
    return ""


@each("name, rule", RULES)
def test_an_argument_is_taken_where_it_has_an_effect_alone(name, rule):
    own = called(rule.action)
    rules = {called(other.action): other for other in parser_of(name)._rules}
    for other in rule.needs:
        assert other in rule.action.help
        more = rules[other].needs if other in rules else ()
        assert not refusal(name, own, other, *more[:1])
    if rule.needs:
        message = refusal(name, own, avoid=rule.needs)
        assert f"{own} has an effect only with {' or '.join(rule.needs)}" in message
    for other in rule.without:
        assert f"not with {other}" in rule.action.help
        message = refusal(name, own, *rule.needs[:1], other)
        assert own in message and other in message


def test_rules_are_of_every_kind():
    names = {name for name, _ in RULES}
    assert {"explain", "export", "summary", "clip chains", "fewshot cross"} <= names
    assert set(commands.LINES) >= names - {"fewshot explain"}
