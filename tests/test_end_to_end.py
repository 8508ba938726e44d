"""The whole system, for real: `make train` with a small budget, on a vLLM server, a DeepSpeed learner and two actors.

One run serves several tests, since starting a server takes half a minute. Ports differ from the
defaults so that a run of one's own may go on beside the tests.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
PORTS = ["server.port=8391", "gateway.port=5691"]
SMALL = [
    "run.steps=3", "learner.groups=8", "eval.every=2", "eval.size=6", "eval.final_size=12", "weights.verify=true",
    "checkpoint.every=2", *PORTS,
]  # fmt: skip

pytestmark = pytest.mark.timeout(600)


def run(*args, timeout=540, **kwargs):
    return subprocess.run(args, cwd=ROOT, capture_output=True, text=True, timeout=timeout, **kwargs)


def ours() -> list[str]:
    """Command lines of processes that a run on our ports would leave behind."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "8391" in line or "rollway-e2e" in line:
            found.append(line)
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(completed process, run folder) of one small `make train`."""
    folder = tmp_path_factory.mktemp("rollway-e2e") / "run"
    done = run("make", "train", f"ARGS=run.dir={folder} {' '.join(SMALL)}")
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{_logs(folder)}"
    return done, folder


def _await_port(port: int, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port}")


def _logs(folder: Path) -> str:
    return "\n".join(f"--- {p.name}\n{p.read_text()[-1500:]}" for p in sorted((folder / "logs").glob("*.log")))


def test_the_run_folder_is_complete(finished):
    _, folder = finished
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "export/model.safetensors", "checkpoints/latest"):
        assert (folder / name).is_file(), name
    assert list((folder / "tensorboard").iterdir()) and list((folder / "trajectories").glob("step-*.md"))
    assert {p.stem for p in (folder / "logs").glob("*.log")} == {"local", "learner", "server-0", "actor-0", "actor-1"}


def test_the_summary_adds_up(finished):
    _, folder = finished
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 3 and summary["episodes"] == 3 * 8 * 8
    assert summary["ledger"] == {
        "consumed": 24,
        "duplicates": 0,
        "lost": 0,
        "stale_dropped": summary["ledger"]["stale_dropped"],
    }
    assert 0 <= summary["staleness"]["max"] <= 2
    assert {(r["version"], r["dataset"]) for r in summary["eval"]} == {
        (v, d) for v in (0, 2, 3) for d in ("hotpot", "wiki2", "musique")
    }
    assert {r["baseline"] for r in summary["baselines"]} == {"naive_rag"}
    assert summary["weight_sync"]["count"] >= 4 and summary["tokens_trained"] > 10_000
    assert 0 < summary["learner_busy_fraction"] <= 1


def test_the_two_engines_agree_on_every_token(finished):
    """After each push (here bit for bit verified) learner and server give the same log-probabilities."""
    _, folder = finished
    mismatch = json.loads((folder / "summary.json").read_text())["logprob_mismatch"]
    assert mismatch["mean"] <= 1e-4 and mismatch["max"] <= 1e-2


def test_a_person_is_shown_the_outcome(finished):
    done, folder = finished
    assert (
        "The run in figures" in done.stdout and "0 lost" in done.stdout and str(folder) in done.stdout.replace("\n", "")
    )
    text = (folder / "trajectories" / "step-000001.md").read_text()
    assert "<tool_call>" in text and "<tool_response>" in text


def test_nothing_is_left_running(finished):
    deadline = time.monotonic() + 10
    while ours() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert ours() == []


def test_the_export_loads_in_transformers(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, folder = finished
    tokenizer = AutoTokenizer.from_pretrained(folder / "export")
    model = AutoModelForCausalLM.from_pretrained(folder / "export")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Who?"}], return_tensors="pt", return_dict=True)
    assert model(**ids).logits.shape[-1] == model.config.vocab_size


def test_a_finished_run_can_be_gone_on_with(finished):
    """Resume: two more steps from the last checkpoint, and the ledger still adds up."""
    _, folder = finished
    done = run(sys.executable, "run.py", *SMALL, f"run.dir={folder}", "--resume", "run.steps=5")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:] + _logs(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 5 and summary["ledger"]["consumed"] == 40 and summary["ledger"]["lost"] == 0
    steps = [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines() if '"eval"' not in line
    ]
    assert steps == [1, 2, 3, 4, 5]


def test_eval_of_the_export(finished):
    _, folder = finished
    done = run(
        sys.executable, "run.py", "--role", "eval", f"model.path={folder / 'export'}", "eval.final_size=8", *PORTS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(name in done.stdout for name in ("hotpot", "wiki2", "musique", "EM"))


def test_without_learning_both_engines_stay_equal_and_a_dashboard_watches(tmp_path):
    """Learning rate 0: over whole training batches of multi-turn episodes mean |log π − log μ| ≤ 1e-4.

    A dashboard attaches from another process meanwhile and ends with the run.
    """
    folder = tmp_path / "rollway-e2e"
    args = [*SMALL, f"run.dir={folder}", "run.steps=2", "learner.optimizer.lr=0", "eval.every=0", "eval.final_size=4"]
    learner = subprocess.Popen([sys.executable, "run.py", *args, "baselines=[]"], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        _await_port(5691)
        watching = run(sys.executable, "run.py", "--role", "dashboard", *PORTS, timeout=240)
        assert learner.wait(60) == 0, _logs(folder)
    finally:
        learner.kill()
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if '"eval"' not in line]
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert step["episodes"] == 64 and step["turns"] > 1.5
        assert step["logprob_mismatch_mean"] <= 1e-4 and step["lr"] == 0
    assert watching.returncode == 0, watching.stderr
    assert "step 2/2" in watching.stdout and "done" in watching.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["model.path=/no/such/model"], "no such model folder"),
        (
            ["server.urls=[http://127.0.0.1:9]", "server.start_timeout_s=3"],
            "no vLLM server answers at http://127.0.0.1:9",
        ),
        (["env.path=envs.nothing:Env"], "env.path"),
        (["env.path=envs.corpus_qa:CorpusQA", "env.args={corpus: BAD, files: {}}"], "not valid JSON"),
    ],
    ids=["model", "server", "env", "corpus"],
)
def test_what_is_not_there_is_one_line_and_an_exit(tmp_path, args, says):
    bad = tmp_path / "corpus.jsonl"
    bad.write_text("{oops\n")
    args = [arg.replace("BAD", str(bad)) for arg in args]
    done = run(sys.executable, "run.py", f"run.dir={tmp_path / 'rollway-e2e'}", *PORTS, *args, timeout=120)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode not in (0, None) and len(errors) == 1 and says in errors[0], done.stderr
    assert "Traceback" not in done.stderr and ours() == []


def test_a_port_in_use_is_one_line_and_an_exit(tmp_path):
    with socket.create_server(("127.0.0.1", 8391)):
        done = run(sys.executable, "run.py", f"run.dir={tmp_path / 'run'}", *PORTS, timeout=60)
    assert done.returncode == 1 and "port 8391 on 127.0.0.1 is in use" in done.stderr and ours() == []


def test_make_adds_little_when_all_is_there():
    """`make train` itself costs under 2 s beyond what run.py takes."""
    began = time.monotonic()
    done = run("make", "train", "ARGS=--dry-run", env={**os.environ})
    assert done.returncode == 0 and time.monotonic() - began < 6
