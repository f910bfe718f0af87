"""scripts/tpu_jobset.py: the JobSet that it prints, and the files of the image."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import tpu_check
import tpu_jobset
import yaml
from tpu_topologies import GENERATIONS, shape_of_topology

ROOT = Path(__file__).parents[2]
FLAGS = [
    "--config=pretrain_base",
    "--config.model.position=rope(base=500)+alibi",
    '--workdir=gs://b/it\'s $HOME: {"more"} # x',
]


def written(*options, flags=FLAGS):
    arguments = ["write", "base", "--image=IMAGE", *options, "--", *flags]
    return yaml.safe_load(tpu_jobset.jobset(*tpu_jobset.parse(arguments)))


def pods(jobset):
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]


@pytest.mark.parametrize(
    ("topology", "accelerator", "hosts", "chips"),
    [
        ("tpu7x:2x2x1", "tpu7x", 1, 4),
        ("tpu7x:4x4x4", "tpu7x", 16, 4),
        ("v5e:2x4", "tpu-v5-lite-podslice", 1, 8),
        ("v5e:4x4", "tpu-v5-lite-podslice", 4, 4),
        ("v6e:1x1", "tpu-v6e-slice", 1, 1),
        ("v5p:2x2x2", "tpu-v5p-slice", 2, 4),
    ],
)
@pytest.mark.parametrize("slices", [1, 2])
def test_as_many_pods_as_hosts(topology, accelerator, hosts, chips, slices):
    jobset = written(f"--topology={topology}", f"--slices={slices}")
    assert jobset["kind"] == "JobSet" and jobset["metadata"]["name"] == "base"
    (job,) = jobset["spec"]["replicatedJobs"]
    assert job["replicas"] == slices
    spec = pods(jobset)
    assert spec["parallelism"] == spec["completions"] == hosts
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology.partition(":")[2],
        "cloud.google.com/gke-spot": "true",
    }
    (train,) = pod["containers"]
    assert train["image"] == "IMAGE" and train["name"] == "train"
    assert train["resources"]["limits"] == {"google.com/tpu": chips}
    assert train["resources"]["requests"] == train["resources"]["limits"]
    assert "command" not in train  # The image's own, pe-jax.
    coordinator = ["--coordinator=auto"] * (hosts * slices > 1)
    assert train["args"] == ["train", *FLAGS, *coordinator]


def test_hosts_have_equally_many_chips():
    for name, generation in GENERATIONS.items():
        for axes in generation.topologies.split():
            shape = shape_of_topology(f"{name}:{axes}")
            assert shape.chips % shape.hosts == 0
            assert shape.chips // shape.hosts in (1, 4, 8)


def test_the_run_resumes_but_after_its_own_errors():
    jobset = written("--topology=v5e:4x4", "--restarts=7", "--capacity=on-demand")
    policy = jobset["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 7
    assert policy["rules"] == [
        {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    ]
    spec = pods(jobset)
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    names = [each["name"] for each in spec["template"]["spec"]["containers"]]
    assert [rule["onExitCodes"]["containerName"]] == names
    assert rule["onExitCodes"]["values"] == [1, 2]
    selector = spec["template"]["spec"]["nodeSelector"]
    assert "cloud.google.com/gke-spot" not in selector


def test_nobody_is_root():
    pod = pods(written("--topology=tpu7x:2x2x1"))["template"]["spec"]
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    user = re.search(r"^USER (\d+)$", (ROOT / "scripts/Dockerfile").read_text(), re.M)
    assert context["runAsUser"] == context["fsGroup"] == int(user[1]) != 0


def test_folders_of_buckets_are_copied(monkeypatch):
    copies = ["--copy=gs://b/BERT", "--copy=gs://b/c/text_ids/"]
    pod = pods(written("--topology=tpu7x:2x2x1", *copies))["template"]["spec"]
    (copy,) = pod["initContainers"]
    (volume,) = pod["volumes"]
    for container in (copy, *pod["containers"]):
        assert container["volumeMounts"] == [
            {"name": volume["name"], "mountPath": "/data"}
        ]
    python, option, program, *folders = copy["command"]
    assert (python, option, copy["image"]) == ("python", "-c", "IMAGE")
    got = []

    class Files:
        def get(self, source, target, recursive):
            got.append((source, target, recursive))

    stub = types.ModuleType("gcsfs")
    stub.GCSFileSystem = Files
    monkeypatch.setitem(sys.modules, "gcsfs", stub)
    monkeypatch.setattr(sys, "argv", [option, *folders])
    exec(program, {})
    assert got == [
        ("gs://b/BERT", "/data/BERT", True),
        ("gs://b/c/text_ids", "/data/text_ids", True),
    ]


def test_the_run_is_checked_first(monkeypatch, capsys):
    checked = []
    monkeypatch.setattr(tpu_check, "check", lambda *facts: checked.append(facts))
    start = ["write", "base", "--image=I", "--topology=tpu7x:2x2x1", "--skip=data"]
    tpu_jobset.main([*start, "--copy=gs://b/BERT", "--", *FLAGS])
    assert checked == [(FLAGS, ["gs://b/BERT"], "tpu7x:2x2x1", ["data"])]
    assert yaml.safe_load(capsys.readouterr().out)["kind"] == "JobSet"


def test_the_image_has_the_wheel_and_the_versions_of_this_machine(
    monkeypatch, tmp_path, capsys
):
    def build_wheel(folder):
        (folder / "pe_jax-1-py3-none-any.whl").touch()
        (folder / "constraints.txt").touch()
        return folder / "pe_jax-1-py3-none-any.whl"

    environment = tpu_check.Environment("3.12", "jax==0.12.1\n")
    monkeypatch.setattr(tpu_check, "build_wheel", build_wheel)
    monkeypatch.setattr(tpu_check, "read_environment", lambda: environment)
    tpu_jobset.main(["build", str(tmp_path / "image")])
    built = f"docker build --build-arg PYTHON=3.12 --tag IMAGE {tmp_path / 'image'}"
    assert capsys.readouterr().out == f"{built}\n"
    files = sorted(path.name for path in (tmp_path / "image").iterdir())
    assert files == ["Dockerfile", "constraints.txt", "pe_jax-1-py3-none-any.whl"]
    dockerfile = (tmp_path / "image" / "Dockerfile").read_text()
    copied = re.search(r"^COPY (.*) (\S+)$", dockerfile, re.M)
    assert copied[1].split() == ["pe_jax-*.whl", "constraints.txt"]
    assert f"--constraint={copied[2]}constraints.txt" in dockerfile
    assert f"[{tpu_check.EXTRAS}]" in dockerfile
    assert dockerfile.rstrip().endswith('ENTRYPOINT ["pe-jax"]')


def test_the_environment_of_this_machine():
    environment = tpu_check.read_environment()
    assert environment.python == "{}.{}".format(*sys.version_info)
    lines = environment.constraints.splitlines()
    assert any(re.fullmatch(r"jax==[\d.]+", line) for line in lines)
    assert not any(re.match("pe[-_]jax==", line) for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: command"),
        (["write", "x", "--image=I"], "required: --topology"),
        (["write", "x", "--image=I", "--topology=v9:2x2"], "such as tpu7x:2x2x1, got"),
        (["write", "x", "--image=I", "--topology=v5e:3x3"], "For v5e: 1x1, 2x2"),
        (["build", "D", "--", "--config=a"], "build takes no flags after --."),
    ],
)
def test_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        tpu_jobset.parse(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_command_starts_without_pe_jax():
    command = [sys.executable, "-S", "-E", str(ROOT / "scripts" / "tpu_jobset.py")]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert shown.returncode == 0 and "TPU7x" in shown.stdout
