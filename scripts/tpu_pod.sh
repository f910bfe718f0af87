#!/usr/bin/env bash
# Trains on a Cloud TPU slice, from this checkout: docs/tpu.md.
#
#   scripts/tpu_pod.sh create  NAME                 ask for the slice, and wait until it is there
#   scripts/tpu_pod.sh install NAME                 this checkout, on every host
#   scripts/tpu_pod.sh copy    NAME gs://.../DIR    a folder of a bucket into ~/DIR of every host
#   scripts/tpu_pod.sh train   NAME --config=...    pe-jax train with these flags, on every host
#   scripts/tpu_pod.sh stop    NAME                 save and end the training
#   scripts/tpu_pod.sh delete  NAME                 the slice; until then it costs
#   scripts/tpu_pod.sh run     NAME --config=...    all of these until the run has finished, also
#                                                   when the slice is taken away; then delete it
#
# The slice, by variables: ZONE, TYPE (such as v5litepod-16), VERSION (its runtime, such as
# v2-alpha-tpuv5-lite); SPOT=no for one that is not preempted; COPY, folders of buckets that `run`
# copies, separated by spaces. The project is gcloud's own.
set -euo pipefail

die() {
  echo "error: $*" >&2
  exit 1
}

(($# >= 2)) || die "tpu_pod.sh COMMAND NAME [...]; the head of the script lists the commands."
command=$1 name=$2
shift 2
: "${ZONE:?Set ZONE, TYPE and VERSION: the zone, such as us-west4-a.}"
zone=(--zone="$ZONE")
pause=${PAUSE:-30} # Seconds between two looks.

queued() { gcloud compute tpus queued-resources "$@" "${zone[@]}"; }

# What is run on a host is one line of bash; the arguments of `on` that are data come quoted.
on() { gcloud compute tpus tpu-vm ssh "$name" "${zone[@]}" --worker="$1" --command="$2"; }

# Sets `now` to the state that a command prints, NONE where there is nothing of that name. What fails
# otherwise says nothing of the state: it is tried again.
look() {
  local fault tries=0
  fault=$(mktemp)
  until now=$("$@" 2>"$fault"); do
    if grep -qiE 'not[_ ]found' "$fault"; then
      now=NONE
      break
    fi
    ((++tries < 5)) || die "The state of $name is unknown: $(cat "$fault")"
    sleep "$pause"
  done
  rm -f "$fault"
}

look_at_request() { look queued describe "$name" --format='value(state.state)'; }

# A request stays ACTIVE for a while after its slice has been taken away.
usable() {
  look_at_request
  [[ $now == ACTIVE ]] || return 1
  look gcloud compute tpus tpu-vm describe "$name" "${zone[@]}" --format='value(state)'
  [[ $now == READY ]]
}

stays_usable() {
  for _ in 1 2 3; do
    sleep "$pause"
    usable || return 1
  done
}

create() {
  : "${TYPE:?Set TYPE: the slice, such as v5litepod-16.}"
  : "${VERSION:?Set VERSION: the runtime, such as v2-alpha-tpuv5-lite.}"
  local spot=(--spot)
  [[ ${SPOT:-yes} == yes ]] || spot=()
  queued create "$name" --node-id="$name" --accelerator-type="$TYPE" \
    --runtime-version="$VERSION" ${spot[@]+"${spot[@]}"}
  while look_at_request && [[ $now != ACTIVE ]]; do
    case $now in
      FAILED | SUSPENDED | SUSPENDING | NONE) die "The request for $name is $now." ;;
    esac
    echo "$name is $now: waiting." >&2
    sleep "$pause"
  done
}

install() {
  local folder wheel
  folder=$(mktemp -d)
  "${PYTHON:-python3}" -m pip wheel --quiet --no-deps --wheel-dir="$folder" "$(dirname "$0")/.."
  wheel=$(cd "$folder" && echo pe_jax-*.whl)
  gcloud compute tpus tpu-vm scp "$folder/$wheel" "$name:" "${zone[@]}" --worker=all
  rm -r "$folder"
  # uv brings a Python of its own: that of the image may be older than 3.11.
  on all "python3 -m pip install --quiet --user uv && \
~/.local/bin/uv venv --quiet --allow-existing --python=3.11 pe_jax && \
~/.local/bin/uv pip install --quiet --reinstall-package=pe_jax --python=pe_jax/bin/python \
'./${wheel}[train,tpu,gcs]'"
}

copy() {
  [[ ${1:-} == gs://* ]] || die "copy NAME gs://BUCKET/FOLDER, got ${1:-nothing}."
  local from=${1%/} to
  to=${from##*/}
  on all "mkdir -p $(printf %q "$to") && gcloud storage rsync -r $(printf '%q %q' "$from" "$to")"
}

# On a host: whether a training runs there. The number in the file may be another process's by now.
# shellcheck disable=SC2016
runs='{ pid=$(cat /dev/shm/pe_jax.pid) && grep -qz pe-jax "/proc/$pid/cmdline"; } 2>/dev/null'

# gcloud connects again where a connection breaks, and starts the command again: one that still
# runs is ended first, which saves.
train() {
  (($#)) || die "train NAME --config=... --workdir=gs://..."
  on all "if $runs; then kill -TERM \$pid; timeout 600 tail --pid=\$pid -f /dev/null; fi; \
echo \$\$ > /dev/shm/pe_jax.pid; \
exec pe_jax/bin/pe-jax train $(printf '%q ' "$@")--coordinator=auto"
}

stop() { on all "if $runs; then kill -TERM \$pid; else echo 'No training runs here.' >&2; fi"; }

delete() { queued delete "$name" --force --quiet; }

attempt() {
  local folder
  install
  for folder in ${COPY:-}; do copy "$folder"; done
  train "$@"
}

# Each folder that is copied needs a name of its own: all go into the home folder.
check_copies() {
  local folder names=' '
  for folder in ${COPY:-}; do
    [[ $folder == gs://* ]] || die "COPY is folders gs://BUCKET/FOLDER, got $folder."
    folder=${folder%/}
    [[ $names != *" ${folder##*/} "* ]] || die "COPY has two folders named ${folder##*/}."
    names+="${folder##*/} "
  done
}

run() {
  local status
  check_copies
  trap 'echo "$name may still be there, and cost: $0 delete $name" >&2' EXIT
  while true; do
    if ! usable; then
      look_at_request
      [[ $now == NONE ]] || delete
      create
    fi
    status=0
    "$0" attempt "$name" "$@" || status=$? # A process of its own, which ends at its first fault.
    if ((status == 0)) || stays_usable; then break; fi
    echo "The slice was taken away: asking for another, to resume." >&2
  done
  delete
  trap - EXIT
  ((status != 75)) || echo "Stopped and saved: the same command resumes." >&2
  exit "$status"
}

case $command in
  create | install | copy | train | stop | delete | attempt | run) "$command" "$@" ;;
  *) die "$command is no command of tpu_pod.sh; the head of the script lists them." ;;
esac
