#!/usr/bin/env python3
"""Train on TPUs of a GKE cluster, TPU7x among them (docs/tpu.md).

    python scripts/tpu_jobset.py build DIR
    python scripts/tpu_jobset.py write NAME --topology=tpu7x:2x2x1 --image=IMAGE -- --config=... \\
        --workdir=gs://... > jobset.yaml

`build` writes the context of an image into the empty folder DIR: the wheel of this checkout, the
versions of the local environment, and the Dockerfile. `write` checks the run on this machine, as
scripts/tpu_slice.py does, and prints a JobSet. Flags after `--` go to `pe-jax train`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import string
import sys
from collections.abc import Sequence
from pathlib import Path

import tpu_check
from tpu_check import ROOT, say
from tpu_topologies import GENERATIONS, Shape, shape_of_topology

# Hosts have no gcloud; gcsfs is in the extra gcs.
COPY = """\
import gcsfs, sys
files = gcsfs.GCSFileSystem()
for folder in sys.argv[1:]:
    name = folder.rstrip("/").rpartition("/")[2]
    files.get(folder.rstrip("/"), "/data/" + name, recursive=True)
"""


def build(folder: Path) -> None:
    """Write the wheel, `constraints.txt` and the Dockerfile into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = tpu_check.build_wheel(folder)
    shutil.copy(ROOT / "scripts" / "Dockerfile", folder)
    python = tpu_check.read_environment().python
    say(f"Wrote {wheel}. The image:")
    print(f"docker build --build-arg PYTHON={python} --tag IMAGE {folder}")


def node_selector(shape: Shape, capacity: str) -> dict[str, str]:
    """Return the labels of the nodes of a slice."""
    labels = {
        "cloud.google.com/gke-tpu-accelerator": GENERATIONS[shape.generation].label,
        "cloud.google.com/gke-tpu-topology": shape.axes,
    }
    if capacity == "spot":
        labels["cloud.google.com/gke-spot"] = "true"
    return labels


def jobset(options: argparse.Namespace, flags: Sequence[str]) -> str:
    """Return the JobSet of a run as YAML."""
    shape = shape_of_topology(options.topology)
    template = string.Template(
        (ROOT / "scripts" / "tpu_jobset.yaml").read_text(encoding="utf-8")
    )
    several_hosts = shape.hosts * options.slices > 1
    coordinator = ["--coordinator=auto"] if several_hosts else []
    values: dict[str, object] = {
        "name": options.name,
        "restarts": options.restarts,
        "slices": options.slices,
        "hosts": shape.hosts,
        "chips": shape.chips // shape.hosts,
        "service_account": options.service_account,
        "node_selector": node_selector(shape, options.capacity),
        "image": options.image,
        "copy_command": ["python", "-c", COPY, *options.copy],
        "arguments": ["train", *flags, *coordinator],
    }
    # JSON is YAML.
    return template.substitute({name: json.dumps(x) for name, x in values.items()})


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this script and the flags after `--`."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", allow_abbrev=False).add_argument("folder", type=Path)
    writer = commands.add_parser("write", allow_abbrev=False)
    add = writer.add_argument
    add("name", help="of the JobSet")
    add("--topology", required=True, help="of a slice, such as tpu7x:2x2x1 or v5e:4x4")
    add("--image", required=True)
    add("--slices", type=int, default=1, help="how many, each of a node pool")
    add("--capacity", choices=["spot", "on-demand"], default="spot")
    add(
        "--service-account", default="default", help="of Kubernetes; it needs --workdir"
    )
    add("--restarts", type=int, default=20, help="of all hosts, until the job fails")
    add(
        "--copy",
        action="append",
        default=[],
        help="gs://BUCKET/DIR, to DIR of each host",
    )
    add(
        "--skip",
        action="append",
        default=[],
        choices=["data", "memory"],
        help="a check",
    )
    own, flags = tpu_check.split_arguments(arguments)
    options = parser.parse_args(own)
    if options.command == "write":
        try:
            shape_of_topology(options.topology)
        except ValueError as error:
            parser.error(str(error))
        if options.slices < 1:
            parser.error(f"--slices must be at least 1, got {options.slices}.")
    elif flags:
        parser.error("build takes no flags after --.")
    return options, flags


def main(arguments: Sequence[str]) -> None:
    options, flags = parse(arguments)
    if options.command == "build":
        build(options.folder)
        return
    topology = shape_of_topology(options.topology).several(options.slices)
    tpu_check.check(flags, options.copy, topology, options.skip)
    print(jobset(options, flags), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
