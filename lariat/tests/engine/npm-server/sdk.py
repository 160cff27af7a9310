"""A container, a network and a volume by Docker's Python SDK, labelled trial=TRIAL and left alone."""

import sys

import docker

trial = sys.argv[1]
labels = {"trial": trial}
deaf = 'trap "" TERM; echo up; while :; do sleep 1; done'

engine = docker.from_env()
engine.networks.create(f"sdk-net-{trial}", labels=labels)
engine.volumes.create(f"sdk-vol-{trial}", labels=labels)
engine.containers.run(
    "bb:latest",
    ["sh", "-c", deaf],
    detach=True,
    labels=labels,
    name=f"sdk-{trial}",
    network_mode="none",
    volumes={f"sdk-vol-{trial}": {"bind": "/data", "mode": "rw"}},
)
