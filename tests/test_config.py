"""Configuration: presets load, overrides apply, every mistake is one clear line."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from configs.load import ConfigError, dump_config, load_config
from configs.schema import Config
from run import parse

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("preset", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_presets_are_valid(preset):
    load_config(preset)


def test_overrides_reach_nested_fields_and_keep_their_types():
    config = load_config(overrides=["learner.optimizer.lr=1e-6", "env.train=[hotpot]", "run.dir=runs/x", "staleness=0"])
    assert config.learner.optimizer.lr == 1e-6
    assert config.env.train == ["hotpot"]
    assert config.run.dir == Path("runs/x")
    assert config.staleness == 0


def test_dump_reads_back_as_the_same_config(tmp_path):
    config = load_config(overrides=["run.seed=7"])
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("learner.lr=1", "did you mean learner.optimizer.lr"),
        ("learner.lrr=1", "did you mean learner.optimizer.lr"),
        ("nonsense.x=1", "nonsense: unknown option"),
        ("learner.optimizer.lr=fast", "learner.optimizer.lr"),
        ("learner.mini_batches=3", "learner.mini_batches (3) must divide learner.groups"),
        ("learner.optimizer.lr", "want section.field=value"),
        ("run.steps.x=1", "run.steps"),
        ("algorithm.advantage.type=magic", "algorithm.advantage.type"),
        ("weights.backend=nccl", "learner.devices"),
        ("sampling.turn_tokens=5000", "model.max_tokens"),
        ("run.steps=[", "not valid YAML"),
        ("env.train=[]", "env.train"),
        ("server.port=5600", "gateway.port (5600) is one of the servers' ports"),
        ("server.port=65536", "server.port"),
        ("learner.optimizer.lr=.inf", "learner.optimizer.lr"),
        ("learner.optimizer.betas=[5,-3]", "learner.optimizer.betas"),
    ],
)
def test_mistakes_are_one_line_that_names_the_field(override, says):
    overrides = ["run.steps=5", override]
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=overrides)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "says"), [("- a\n", "mapping"), ("a: [\n", "not valid YAML"), ("\x00", "YAML")])
def test_broken_files(tmp_path, text, says):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_config(path)


def test_missing_file_names_the_presets():
    with pytest.raises(ConfigError, match=r"quickstart\.yaml"):
        load_config("nowhere.yaml")


def run_py(*args):
    return subprocess.run(
        [sys.executable, ROOT / "run.py", *args], capture_output=True, text=True, timeout=60, cwd=ROOT
    )


def test_dry_run_prints_the_whole_resolved_configuration():
    done = run_py("--dry-run", "learner.group_size=4")
    assert done.returncode == 0
    assert Config.model_validate(yaml.safe_load(done.stdout)).learner.group_size == 4


def test_wrong_key_on_the_command_line_exits_with_2_and_one_line():
    done = run_py("learner.lrr=1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.strip().count("\n") == 0
    assert done.stderr.startswith("error: learner.lrr: unknown option")


def test_help_lists_every_role():
    done = run_py("--help")
    assert done.returncode == 0
    for role in ("local", "learner", "actor", "server", "dashboard", "eval", "warmstart"):
        assert f"\n  {role} " in done.stdout


def test_options_may_stand_anywhere_among_the_words():
    words = ["run.steps=3", "--resume", "run.dir=runs/x", "--role", "learner", "staleness=0"]
    args = parse(words)
    assert args.resume and args.role == "learner" and args.overrides == [w for w in words if "=" in w]
