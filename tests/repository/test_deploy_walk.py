"""docs/deploy.md is followed word for word: four bare machines become a federation."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.repository._machines import MISSING, running_machines
from tests.repository._source import ROOT
from tests.repository._walking import COORDINATOR, HOLDERS, Walk, until
from tests.repository.conftest import copy_source

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("machines"),
]
PAGE = ROOT / "docs" / "deploy.md"
UNITS = PAGE.parent / "deploy"
OWN = ("sotto", "__editable__", "__pycache__", "pip")


def mirror_of(site_packages: Path, folder: Path, place: str) -> None:
    """Links to all installed packages but Sotto itself, as a machine sees them."""
    folder.mkdir(parents=True)
    for entry in site_packages.iterdir():
        if not entry.name.startswith(OWN) and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(f"{place}/{entry.name}")


def write_images(folder: Path, seed: int) -> None:
    """A holder's images: noise, a little brighter in one class."""
    rng = np.random.default_rng(seed)
    for label, name in enumerate(("benign", "malignant")):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(60 * label, 160 + 60 * label, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def build(walk: Walk, folder: Path, commands: str) -> None:
    """Type a checkout's commands in a copy of it."""
    copy_source(folder)
    shutil.copy(ROOT / "requirements.lock", folder)
    (folder / ".venv").symlink_to(sys.prefix)
    subprocess.run(["bash", "-e"], cwd=folder, input=commands.encode(), check=True)


def carry_the_wheel(walk: Walk, folder: Path) -> None:
    for file in (*folder.glob("dist/*.whl"), folder / "requirements.lock"):
        for machine in walk.machines.values():
            machine.write(f"/opt/{file.name}", file.read_bytes())


def carry_the_enrolment(walk: Walk) -> None:
    content = walk.machines["north"].read("/etc/sotto/enrolment.json")
    for name in (COORDINATOR, "east", "south"):
        walk.machines[name].write("/etc/sotto/enrolment.json", content)


def carry_units(walk: Walk) -> None:
    for name in ("sotto-relay.service", "sotto-run@.service"):
        content = (UNITS / name).read_bytes()
        walk.machines[COORDINATOR].write(f"/etc/systemd/system/{name}", content)
    for holder in HOLDERS:
        for name in ("sotto-client.service", "sotto-tunnel.service"):
            content = (UNITS / name).read_bytes().replace(b"north", holder.encode())
            walk.machines[holder].write(f"/etc/systemd/system/{name}", content)


def carry_the_host_key(walk: Walk) -> None:
    walk.known["HOST_KEY_OF_COORDINATOR"] = walk.known["NODE_KEY_OF_COORDINATOR"]


def carry_charges(walk: Walk) -> None:
    content = walk.machines[COORDINATOR].read("/var/lib/sotto/charges.json")
    walk.machines["north"].write("/var/lib/sotto/charges.json", content)


def journal(walk: Walk) -> str:
    return walk.machines[COORDINATOR].must("journalctl --no-pager -o cat -u 'sotto-run@*'")


def wait_for_the_hub(walk: Walk) -> None:
    there = "test -S /var/lib/sotto/hub.sock"
    until(lambda: walk.machines[COORDINATOR].run(there)[0] == 0, "the hub")


def wait_for_a_round(walk: Walk) -> None:
    until(lambda: '"round"' in journal(walk), "the first round")
    walk._learn(COORDINATOR, journal(walk))


def wait_for_the_end(walk: Walk) -> None:
    coordinator = walk.machines[COORDINATOR]
    until(lambda: coordinator.run("systemctl is-active sotto-run@pilot")[0] != 0, "the run's end")
    state = coordinator.must("systemctl show -p Result sotto-run@pilot").strip()
    assert state == "Result=success", journal(walk)


def carry_an_image(walk: Walk) -> None:
    for name in HOLDERS:
        walk.machines[name].must("cp /srv/images/benign/0.png /var/lib/sotto/scan.png")


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """All of the guide, done."""
    folder = tmp_path_factory.mktemp("walk")
    packages = Path(sysconfig.get_path("purelib"))
    mirror_of(packages, folder / "mirror" / "sotto", "/mirror/packages")
    shown = {folder / "mirror": "/mirror", packages: "/mirror/packages"}
    (folder / "mirror" / "packages").mkdir()
    with running_machines((COORDINATOR, *HOLDERS), folder / "disks", shown) as machines:
        for number, name in enumerate(HOLDERS):
            write_images(folder / name, number)
            for file in (folder / name).rglob("*.png"):
                where = f"/srv/images/{file.relative_to(folder / name)}"
                machines[name].write(where, file.read_bytes())
        walk = Walk(
            machines,
            carry={
                "`dist/": lambda walk: carry_the_wheel(walk, folder / "checkout"),
                "the public half": lambda walk: None,
                "this *node key*": lambda walk: None,
                "`/etc/sotto/enrolment.json`": carry_the_enrolment,
                "[`sotto-relay.service`]": carry_units,
                "this line": carry_the_host_key,
                "`/var/lib/sotto/charges.json`": carry_charges,
            },
            waits={
                "python -m platform.coordinator federation status": wait_for_the_hub,
                "python -m platform.client budget": carry_an_image,
                "systemctl stop sotto-run@": wait_for_a_round,
                "cd /etc/sotto\npython -m platform.coordinator enrolment revoke": wait_for_the_end,
            },
            checkout=lambda commands: build(walk, folder / "checkout", commands),
        )
        walk.follow(PAGE)
        yield walk


def said_on(walk: Walk, machine: str, word: str) -> list[str]:
    """What commands with a word in them printed on a machine."""
    return [said for name, text, said in walk.said if name == machine and word in text]


def test_the_guide_can_be_followed(walked: Walk) -> None:
    assert walked.said
