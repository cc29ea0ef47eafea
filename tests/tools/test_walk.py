"""The walk of a command: which functions of the package call each other, and which call upwards."""

import types

from walk import PACKAGE, follow, line_of, listing, module_of, read_layers

from hypvision.cli import main


def module(name, text, **names):
    """A module of the package that exists here alone."""
    made = types.SimpleNamespace(**names)
    exec(compile(text, f"{PACKAGE}{name}.py", "exec"), made.__dict__)
    return made


def test_functions_places_rooms_and_climbs():
    task = module("tasks/own", "def loss():\n    return 1")
    engine = module("engine/run", "def step():\n    return [loss() for _ in 'ab']", loss=task.loss)
    cli = module("cli/train", "def run():\n    step()\n    step()", step=engine.step)
    walk = follow(cli.run)
    assert [code.co_name for code in walk.functions] == ["run", "step", "loss"]
    assert walk.places == ["cli/train", "engine/run", "tasks/own"]
    assert walk.rooms == ["cli", "engine", "tasks"]
    layers = read_layers()
    climbs = walk.climbs(layers, direct=True)
    assert [tuple(map(module_of, pair)) for pair in climbs] == [("engine/run", "tasks/own")]
    assert line_of("own", walk, layers) == "| own | 3 | 3 | 3 | 1 | 0 |"
    assert listing(walk, layers)[-1] == "  climb: engine/run -> tasks/own loss"


def test_a_call_through_a_library():
    task = module("tasks/own", "def loss():\n    return 1")
    engine = module("engine/run", "def run():\n    return any(map(call, [loss]))", loss=task.loss)
    engine.run.__globals__["call"] = lambda function: function()  # of this file
    walk = follow(engine.run)
    assert line_of("own", walk, read_layers()) == "| own | 2 | 2 | 2 | 0 | 1 |"


def test_imports_do_not_count_and_the_first_step_ends_it():
    helper = module("engine/a", "def helper():\n    return 1")
    body = compile("helper()", f"{PACKAGE}engine/b.py", "exec")
    assert body.co_name == "<module>"
    late = module("engine/c", "def late():\n    return 1")
    step = types.SimpleNamespace()
    exec(compile("def train_step():\n    pass", "/site/mmengine/model.py", "exec"), step.__dict__)

    def work():
        exec(body, {"helper": helper.helper})
        step.train_step()
        late.late()

    assert [code.co_name for code in follow(work).functions] == ["late"]
    assert not follow(work, until_step=True).functions


def test_the_layers_are_those_of_the_linter():
    layers = read_layers()
    assert layers["cli"] > layers["tasks"] > layers["engine"] > layers["io"] == 0
    assert layers["data"] == layers["models"] and "containers" not in layers


def test_a_command(capsys):
    walk = follow(lambda: main(["configs", "cifar10"]))
    assert {"cli", "cli/configs", "io/shipped"} <= set(walk.places)
    # the border of errors calls the command
    named = [(a.co_name, b.co_name) for a, b in walk.climbs(read_layers(), direct=True)]
    assert ("guard", "_run") in named
