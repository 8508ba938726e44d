"""The learner on several hosts: hostfile, launcher, signals, and the manifests for Slurm and Kubernetes.

A whole run on hosts of its own is in test_scale_out_run.py.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml

from configs.load import ConfigError, load_config
from configs.schema import Config
from learner import local, main
from learner.launch import LaunchError, RanksMissing, launcher, leader
from protocol.keys import ClientKeys, LearnerKeys, make_keys
from run import parse

ROOT = Path(__file__).parents[1]
SLURM = ROOT / "docs" / "scale-out" / "slurm.sbatch"
KUBERNETES = ROOT / "docs" / "scale-out" / "kubernetes.yaml"
DOCUMENT = ROOT / "docs" / "scale-out.md"


def config(**learner) -> Config:
    return Config.model_validate({"learner": learner})


@pytest.fixture
def hostfile(tmp_path):
    path = tmp_path / "hostfile"
    path.write_text("# the learner's\nnode-a slots=2  # of four\n\nnode-b slots=4\n")
    return path


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def world(argv: list[str]) -> dict[str, list[int]]:
    [encoded] = [word.partition("=")[2] for word in argv if word.startswith("--world_info=")]
    return json.loads(base64.urlsafe_b64decode(encoded))


def of(argv: list[str], option: str) -> str:
    [value] = [word.partition("=")[2] for word in argv if word.startswith(f"--{option}=")]
    return value


# ── the launcher's command line ──────────────────────────────────────────────


def test_one_rank_needs_no_launcher():
    assert launcher(config(), []) is None
    assert launcher(config(devices=[0]), []) is None


@pytest.mark.parametrize("devices", [[], [4, 6]])
def test_ranks_of_one_machine_meet_on_its_loopback_at_a_free_port(devices):
    argv = launcher(config(ranks=2, devices=devices), ["--role", "learner"])
    assert argv[3] == "deepspeed.launcher.launch" and world(argv) == {"localhost": devices or [0, 1]}
    assert of(argv, "master_addr") == "127.0.0.1" and int(of(argv, "master_port")) != 29500
    assert argv[-3:] == [str(ROOT / "run.py"), "--role", "learner"]


def test_a_host_of_a_hostfile_starts_its_own_ranks(hostfile):
    argv = launcher(config(ranks=6, hostfile=hostfile, node=1, master_port=1234), ["a b"])
    assert argv[3] == "deepspeed.launcher.launch" and argv[-1] == "a b"
    assert world(argv) == {"node-a": [0, 1], "node-b": [0, 1, 2, 3]}
    assert (of(argv, "node_rank"), of(argv, "master_addr"), of(argv, "master_port")) == ("1", "node-a", "1234")


def test_devices_are_gpus_of_each_host(hostfile):
    argv = launcher(config(ranks=2, hostfile=hostfile, node=0, devices=[1], master_address="10.0.0.7"), [])
    assert world(argv) == {"node-a": [1], "node-b": [1]} and of(argv, "master_addr") == "10.0.0.7"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("node-a\n", r"hostfile:1: want HOST slots=N, N at least 1, and not 'node-a'"),
        ("node-a slots=2\nnode-b slots=0\n", r"hostfile:2: want HOST slots=N"),
        ("node-a slots=1\n\nnode-a slots=1\n", r"hostfile:3: node-a is there twice"),
        ("# nobody\n", r"names no host"),
        (None, r"cannot be read: .*No such file"),
    ],
    ids=["slots", "none", "twice", "empty", "missing"],
)
def test_a_wrong_hostfile_is_named_with_its_line(tmp_path, text, says):
    path = tmp_path / "hostfile"
    if text is not None:
        path.write_text(text)
    with pytest.raises(LaunchError, match=says) as caught:
        launcher(config(ranks=2, hostfile=path, node=0), [])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ranks": 2, "node": 0}, "makes 6 ranks and learner.ranks is 2: set learner.ranks=6"),
        ({"ranks": 6, "node": 2}, "learner.node is 2: .* has hosts 0 to 1"),
        ({"ranks": 6, "node": 0, "devices": [0, 1, 2]}, "names GPU 2, and .* gives node-a 2 slots"),
        (
            {"ranks": 6, "node": 0, "master_address": "localhost"},
            "localhost, is 127.0.0.1 here.*learner.master_address",
        ),
        ({"ranks": 6}, "pdsh is not installed.*learner.node"),
    ],
    ids=["ranks", "node", "devices", "loopback", "pdsh"],
)
def test_what_does_not_fit_the_hostfile_is_one_line(hostfile, monkeypatch, options, says):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LaunchError, match=says) as caught:
        launcher(config(hostfile=hostfile, **options), [])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("learner.node=0", "learner.node=0 is for a learner on several hosts: set learner.hostfile"),
        ("learner.master_address=a", "learner.master_address=a is for a learner on several hosts"),
        ("learner.devices=[0,1,2]", r"learner.ranks (2) must be the number of learner.devices (3)"),
        ("learner.node=-1", "learner.node"),
        ("learner.master_port=65536", "learner.master_port"),
    ],
)
def test_options_that_exclude_each_other(override, says):
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=["learner.ranks=2", override])
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("role", "code"), [(local, 1), (main, 3)], ids=["local", "learner"])
def test_a_mistake_ends_the_role_with_one_line(tmp_path, capsys, role, code):
    broken = config(hostfile="nowhere")
    broken.run.dir = tmp_path / "run"
    assert role.main(broken) == code
    said = capsys.readouterr().err
    assert said.startswith("error: learner.hostfile") and said.count("\n") == 1 and not broken.run.dir.exists()


#: Words of a command line that a shell on the way would change.
HARD = ["log.project=a'b$HOME*{c,d}", 'env.args={"a": "$HOME `id` it\'s \\\\ "}', "env.train=[hotpot, wiki2]"]


@pytest.mark.timeout(600)
def test_over_ssh_deepspeeds_launcher_gives_each_host_its_place_and_the_words_as_they_are(tmp_path, hostfile):
    """DeepSpeed's launcher is real; pdsh, which would carry its command to the hosts, writes it down."""
    script(tmp_path / "ssh", "#!/bin/sh\n")
    script(tmp_path / "pdsh", '#!/bin/sh\nprintf "%s\\n" "$*" > "$0.said"\n')
    words = ["--role", "learner", f"learner.hostfile={hostfile}", "learner.ranks=6", *HARD]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "run.py", *words], cwd=ROOT, env=env, capture_output=True, timeout=500)
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "pdsh.said").read_text()
    assert "-w node-a,node-b " in said and f"cd {ROOT}; {sys.executable} -u -m deepspeed.launcher.launch" in said
    remote = said[said.index("--world_info") :].strip()
    shell = subprocess.run(["bash", "-c", f"printf '%s\\0' {remote}"], capture_output=True, text=True, check=True)
    argv = shell.stdout.split("\0")[:-1]
    assert world(argv) == {"node-a": [0, 1], "node-b": [0, 1, 2, 3]}
    assert of(argv, "node_rank") == "%n"  # pdsh puts the host's number there
    assert of(argv, "master_addr") == "node-a" and argv[-len(words) :] == words


# ── where the ranks meet ─────────────────────────────────────────────────────


def test_rank_0_listens_at_its_own_address_alone():
    from learner.policy import meeting

    store = meeting._serve("127.0.0.2", 0, timeout_s=5)
    socket.create_connection(("127.0.0.2", store.port), timeout=5).close()
    here = psutil.Process().net_connections()
    assert {c.laddr.ip for c in here if c.laddr.port == store.port and c.status == "LISTEN"} == {"127.0.0.2"}
    with pytest.raises(LaunchError, match=r"rank 0 cannot listen on 127\.0\.0\.2:\d+: Address already in use; is this"):
        meeting._serve("127.0.0.2", store.port, timeout_s=5)
    with pytest.raises(LaunchError, match=r"203\.0\.113\.1:29500: Cannot assign requested address; .*first host"):
        meeting._serve("203.0.113.1", 29500, timeout_s=5)


def test_ranks_talk_over_the_interface_on_the_way_to_rank_0():
    from learner.policy import meeting

    assert meeting.interface_towards("127.0.0.1", timeout_s=5) == "lo"
    with pytest.raises(RanksMissing, match=r"no way to the learner's first host nowhere\.invalid"):
        meeting.interface_towards("nowhere.invalid", timeout_s=0)


def test_a_rank_that_waits_in_vain_says_for_whom(monkeypatch):
    from learner.policy import meeting

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with pytest.raises(
        RanksMissing, match=rf"rank 1 of 2 did not meet the others at 127\.0\.0\.1:{port} within 1 s"
    ) as told:
        meeting.meet("gloo", timeout_s=1)
    assert "\n" not in str(told.value)


# ── signals ──────────────────────────────────────────────────────────────────


def test_the_leader_is_rank_0_below_a_launcher_and_else_the_process_itself():
    code = (
        "import os, subprocess, sys; ranks = [subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, "
        "env={**os.environ, 'RANK': str(r)}) for r in (1, 0)]; print(ranks[1].pid, flush=True); input()"
    )
    outer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        rank_0 = int(outer.stdout.readline())
        deadline = time.monotonic() + 10  # a process that has just been started has no environment for a moment
        while leader(outer.pid).pid != rank_0:
            assert time.monotonic() < deadline
        assert leader(rank_0).pid == rank_0
    finally:
        outer.communicate("\n", timeout=10)
    with pytest.raises(psutil.NoSuchProcess):
        leader(outer.pid)


def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch):
    asked, left, now = [], [], [100.0]
    trainer = SimpleNamespace(stop_requested=False)
    trainer.request_stop = lambda: (asked.append(now[0]), setattr(trainer, "stop_requested", True))
    monkeypatch.setattr(main.os, "_exit", left.append)
    monkeypatch.setattr(main, "time", SimpleNamespace(monotonic=lambda: now[0]))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        main._stop_on_signals(trainer)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # the launcher passes it on
        assert asked == [100.0] and left == []
        now[0] += main.ECHO_S + 0.1
        signal.raise_signal(signal.SIGTERM)
        assert asked == [100.0] and left == [130]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ── Slurm ────────────────────────────────────────────────────────────────────

#: Stand-ins. srun runs its command once a task, and passes a signal on; python writes its words down, and as a learner
#: ends as CODES tell, one an attempt, or (``sleep``) when it is asked to.
SRUN = """#!/bin/bash
for word; do case $word in --nodelist=*) nodes=${word#*=} ;; --ntasks-per-node=*) tasks=${word#*=} ;; --*) ;; *) break ;; esac; shift; done
code=0 task=0 pids=()
trap 'kill "${pids[@]}"' TERM
for node in ${nodes//,/ }; do for ((n = 0; n < tasks; n++)); do
  SLURM_PROCID=$task SLURM_LOCALID=$n SLURMD_NODENAME=$node "$@" & pids+=($!); ((++task))
done; done
for pid in "${pids[@]}"; do
  wait "$pid"; ended=$?
  while [ $ended -gt 128 ]; do wait "$pid" 2> /dev/null; again=$?; [ $again -ne 127 ] || break; ended=$again; done
  [ $ended = 0 ] || code=$ended
done
exit $code
"""
PYTHON = """#!/bin/bash
line=$(printf '%s\\t' "$SLURMD_NODENAME" "$@"); echo "$line" >> "$SAID"  # whole lines, however many write
case "$*" in *"learner.node=0"*) ;; *) exit 0 ;; esac
attempt=$(grep -c "learner.node=0" "$SAID"); codes=($CODES); code=${codes[$((attempt - 1))]}
[ "$code" != sleep ] || trap 'echo saved >> "$SAID"; exit 1' TERM
mkdir -p "$RUN_DIR"; touch "$RUN_DIR/config.yaml"
[ "$code" != sleep ] || { sleep 30 & wait $!; }
exit "$code"
"""


@pytest.fixture
def slurm(tmp_path):
    """(options) → a started script on four nodes, ``a`` to ``d``, of two GPUs each; .said: what python was told."""
    script(tmp_path / "srun", SRUN)
    script(tmp_path / "scontrol", "#!/bin/bash\n[ $1-$2 = show-hostnames ] && tr , '\\n' <<< $3\n")
    python, said = script(tmp_path / "python", PYTHON), tmp_path / "said"

    def start(codes: str = "0", **env: str) -> subprocess.Popen:
        env = {
            "SLURM_JOB_NODELIST": "a,b,c,d", "SLURM_GPUS_ON_NODE": "2", "LEARNER_NODES": "2", "ACTORS": "3",
            "RUN_DIR": str(tmp_path / "run"), "PYTHON": str(python), "SAID": str(said), "CODES": codes,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        } | env  # fmt: skip
        return subprocess.Popen(
            ["bash", SLURM, "run.steps=7"], cwd=ROOT, env=os.environ | env, stderr=subprocess.PIPE, text=True
        )

    start.said = lambda: [line.split("\t")[:-1] or [line] for line in said.read_text().splitlines()]
    start.hostfile = tmp_path / "run-hostfile"
    return start


def resolved(words: list[str]) -> tuple[str, Config, bool]:
    """(role, configuration, whether it resumes) of a command line of ours, which has to be a valid one."""
    args = parse(words[words.index("run.py") + 1 :])
    return args.role, load_config(args.config, args.overrides), args.resume


def test_the_slurm_script_starts_every_role_where_it_belongs(slurm):
    assert subprocess.run(["bash", "-n", SLURM]).returncode == 0
    done = slurm()
    assert done.wait(60) == 0, done.stderr.read()
    started: dict[str, list[tuple[str, Config]]] = {}
    for node, *words in slurm.said():
        role, found, resume = resolved(words)
        assert (found.run.steps == 7 or role == "keygen") and not resume
        started.setdefault(role, []).append((node, found))
    assert slurm.hostfile.read_text() == "a slots=2\nb slots=2\n"

    servers = sorted((node, c.server.host, c.server.port, c.server.devices) for node, c in started["server"])
    assert servers == [(n, n, 8100 + gpu, [[gpu]]) for n in "cd" for gpu in range(2)]
    assert all(c.server.insecure and c.server.count == 1 for _, c in started["server"])
    assert sorted(node for node, _ in started["actor"]) == list("cccddd")
    assert {c.gateway.host for _, c in started["actor"]} == {"a"}
    learners = dict(started["learner"])
    assert {node: c.learner.node for node, c in learners.items()} == {"a": 0, "b": 1}
    rank_0 = learners["a"]
    assert rank_0.gateway.host == "0.0.0.0"
    assert rank_0.server.urls == [f"http://{host}:{port}" for _, host, port, _ in servers]
    launched = launcher(rank_0, [])
    assert world(launched) == {"a": [0, 1], "b": [0, 1]} and of(launched, "master_addr") == "a"
    keys = {c.gateway.keys for found in started.values() for _, c in found}
    assert len(keys) == 1 and None not in keys and {"keygen", "learner", "actor", "server"} == set(started)


def test_a_learner_that_fails_goes_on_from_its_checkpoint_and_a_hopeless_one_does_not(slurm):
    done = slurm(codes="1 1 3 0")
    assert done.wait(60) == 3
    learners = [resolved(words)[::2] for _, *words in slurm.said() if "learner" in words]
    assert learners == [("learner", False)] * 2 + [("learner", True)] * 4
    assert done.stderr.read().count("it is started again") == 2


def test_before_the_time_is_over_the_learner_saves_and_is_not_started_again(slurm, tmp_path):
    done = slurm(codes="sleep 0")
    deadline = time.monotonic() + 30
    while not (tmp_path / "run" / "config.yaml").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    done.send_signal(signal.SIGTERM)  # as Slurm does: to the script alone
    assert done.wait(30) == 1, done.stderr.read()
    learners = [words for words in slurm.said() if "learner.node=0" in words]
    assert ["saved"] in slurm.said() and len(learners) == 1


def test_the_slurm_script_wants_a_node_that_serves(slurm):
    done = slurm(LEARNER_NODES="4")
    assert done.wait(30) == 2 and "4 of 4 nodes train and none serves" in done.stderr.read()


# ── Kubernetes ───────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def manifests():
    """(kind, name) → document."""
    documents = list(yaml.safe_load_all(KUBERNETES.read_text()))
    return {(d["kind"], d["metadata"]["name"]): d for d in documents}


def test_the_manifests_fit_the_schemas_of_kubernetes(manifests):
    validate = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes are not installed")
    for document in manifests.values():
        validate.validate(document, "1.37", strict=True)


def workloads(manifests) -> dict[str, dict]:
    return {name: d for (kind, name), d in manifests.items() if kind in ("Job", "StatefulSet", "Deployment")}


def test_what_the_manifests_name_is_there(manifests):
    """Selectors, volumes, claims, ports and names of hosts: no schema sees whether they meet."""
    pods = {name: workload["spec"]["template"] for name, workload in workloads(manifests).items()}
    assert set(pods) == {"rollway-learner", "rollway-server", "rollway-actor"}
    for name, pod in pods.items():
        selector = workloads(manifests)[name]["spec"].get("selector", {"matchLabels": pod["metadata"]["labels"]})
        assert selector["matchLabels"] == pod["metadata"]["labels"] == {"app": "rollway", "part": name.split("-")[1]}
        [container] = pod["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        for volume in volumes.values():
            if claim := volume.get("persistentVolumeClaim"):
                assert ("PersistentVolumeClaim", claim["claimName"]) in manifests
            if source := volume.get("configMap"):
                assert ("ConfigMap", source["name"]) in manifests
        named = {port["name"] for port in container.get("ports", [])}
        probes = [container[probe] for probe in ("startupProbe", "livenessProbe") if probe in container]
        assert {probe["httpGet"]["port"] for probe in probes} <= named
    for (kind, name), service in manifests.items():
        if kind == "Service":
            assert service["spec"]["selector"] == pods[name]["metadata"]["labels"]
            ports = {p["name"]: p["port"] for p in service["spec"]["ports"]}
            assert ports == {p["name"]: p["containerPort"] for p in pods[name]["spec"]["containers"][0]["ports"]}
    assert pods["rollway-learner"]["spec"]["subdomain"] == "rollway-learner"
    assert manifests["StatefulSet", "rollway-server"]["spec"]["serviceName"] == "rollway-server"
    policy = manifests["NetworkPolicy", "rollway"]["spec"]
    assert policy["podSelector"]["matchLabels"] == policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"]


def command(manifests, name: str, index: int, folder: Path) -> list[str]:
    """The words of ``run.py`` in pod ``index``; where a shell makes them, it does so in ``folder``."""
    [container] = workloads(manifests)[name]["spec"]["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    if words[0] == "sh":
        python = script(folder / "python", '#!/bin/sh\nprintf "%s\\0" "$@"\n')
        env = {"PATH": f"{python.parent}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": str(index)}
        return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout.split(
            "\0"
        )[:-1]
    assert words[:2] == ["python", "run.py"]
    return [word.replace("$(POD_IP)", "10.1.0.7") for word in words[1:]]


def test_the_pods_commands_fit_each_other(manifests, tmp_path):
    job = manifests["Job", "rollway-learner"]["spec"]
    assert job["completions"] == job["parallelism"] == 2 and job["completionMode"] == "Indexed"
    (tmp_path / "hostfile").write_text(manifests["ConfigMap", "rollway"]["data"]["hostfile"])
    for index in range(2):
        role, found, resume = resolved(command(manifests, "rollway-learner", index, tmp_path))
        assert role == "learner" and found.learner.node == index and not resume
        assert found.learner.hostfile == Path("/etc/rollway/hostfile")
        learner = found.learner.model_copy(update={"hostfile": tmp_path / "hostfile"})
        argv = launcher(found.model_copy(update={"learner": learner}), [])
        gpus = job["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        assert world(argv) == {f"rollway-learner-{n}.rollway-learner": list(range(gpus)) for n in range(2)}
    ports = {p["name"]: p["port"] for p in manifests["Service", "rollway-learner"]["spec"]["ports"]}
    assert ports == {"gateway": found.gateway.port, "ranks": found.learner.master_port}
    servers = manifests["StatefulSet", "rollway-server"]["spec"]
    assert found.server.urls == [f"http://rollway-server-{n}.rollway-server:8100" for n in range(servers["replicas"])]
    (tmp_path / "runs" / "kubernetes").mkdir(parents=True)
    (tmp_path / "runs" / "kubernetes" / "config.yaml").touch()
    assert resolved(command(manifests, "rollway-learner", 0, tmp_path))[2]

    role, server, _ = resolved(command(manifests, "rollway-server", 0, tmp_path))
    assert role == "server" and (server.server.host, server.server.port, server.server.insecure) == (
        "10.1.0.7",
        8100,
        True,
    )
    assert server.model.path == found.model.path
    role, actor, _ = resolved(command(manifests, "rollway-actor", 0, tmp_path))
    assert role == "actor" and actor.gateway.host == "rollway-learner-0.rollway-learner"
    assert actor.gateway.port == found.gateway.port
    assert actor.gateway.keys == found.gateway.keys == Path("/keys")


def secrets() -> dict[str, dict[str, str]]:
    """Secret → key → file, as the document has them made."""
    found = {}
    for name, rest in re.findall(r"kubectl create secret generic (\S+)((?: \\\n|[^\n])*)", DOCUMENT.read_text()):
        files = [word.partition("=")[2] for word in shlex.split(rest.replace("\\\n", " "))]
        found[name] = dict(f.split("=") if "=" in f else (Path(f).name, f) for f in files)
    return found


def mounted(pod: dict, secret_files: dict[str, dict[str, str]], source: Path, target: Path) -> Path:
    """What a pod finds at its mount of a Secret: links to files of the mode that its volume says."""
    [volume] = [v["secret"] for v in pod["spec"]["volumes"] if "secret" in v]
    for number, item in enumerate(volume["items"]):
        file = target / "..data" / str(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((source / secret_files[volume["secretName"]][item["key"]]).read_bytes())
        file.chmod(volume["defaultMode"])
        link = target / item["path"]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
        assert stat.S_IMODE(link.stat().st_mode) == 0o400
    return target


def test_the_keys_are_found_where_the_secrets_are_mounted(manifests, tmp_path):
    make_keys(tmp_path / "keys", "actor")
    pods = {name: workload["spec"]["template"] for name, workload in workloads(manifests).items()}
    learner = LearnerKeys.load(mounted(pods["rollway-learner"], secrets(), tmp_path, tmp_path / "of-learner"))
    assert sorted(learner.allowed().values()) == ["actors/actor", "dashboards/dashboard"]
    actor = ClientKeys.load(mounted(pods["rollway-actor"], secrets(), tmp_path, tmp_path / "of-actor"), "actor")
    assert actor.learner == learner.public
