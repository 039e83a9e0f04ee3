"""docs/deploy.md and docs/deploy/upkeep.md are followed word for word on four bare machines."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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
ENGINES = {name: ROOT / f".venv-{name}" for name in ("flower", "nvflare")}
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


def build(folder: Path, commands: str) -> None:
    """Type a checkout's commands in a copy of it."""
    copy_source(folder)
    shutil.copy(ROOT / "requirements-run.lock", folder)
    (folder / ".venv").symlink_to(sys.prefix)
    subprocess.run(["bash", "-e"], cwd=folder, input=commands.encode(), check=True)


def carry_the_wheel(walk: Walk, folder: Path) -> None:
    for file in (*folder.glob("dist/*.whl"), folder / "requirements-run.lock"):
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


def carry_requests(walk: Walk) -> None:
    for name in HOLDERS:
        content = walk.machines[name].read("/etc/sotto/node.csr")
        walk.machines[COORDINATOR].write(f"/etc/sotto/{name}.csr", content)


def carry_certificates(walk: Walk) -> None:
    for name in HOLDERS:
        for file, own in ((f"{name}.pem", "node.pem"), ("ca.pem", "ca.pem")):
            content = walk.machines[COORDINATOR].read(f"/etc/sotto/{file}")
            walk.machines[name].write(f"/etc/sotto/{own}", content)


def carry_flowers_units(walk: Walk) -> None:
    for name in ("sotto-superlink.service", "sotto-link.service"):
        walk.machines[COORDINATOR].write(f"/etc/systemd/system/{name}", (UNITS / name).read_bytes())
    node = (UNITS / "sotto-node.service").read_bytes()
    for holder in HOLDERS:
        walk.machines[holder].write("/etc/systemd/system/sotto-node.service", node)


def carry_zips(here: str, kind: str, there: str, walk: Walk) -> None:
    """Carry holders' requests to the root's keeper, or what it signed back."""
    for name in HOLDERS:
        ways = (walk.machines[name], walk.machines[COORDINATOR])
        (source, target) = ways if kind == "request" else reversed(ways)
        content = source.read(f"/var/lib/sotto/{here}{name}.{kind}.zip")
        target.write(f"/var/lib/sotto/{there}{name}.{kind}.zip", content)
    walk.known["FINGERPRINT_OF_ROOT"] = (
        walk.known.pop("FINGERPRINT_OF_COORDINATOR", "") or (walk.known["FINGERPRINT_OF_ROOT"])
    )


def carry_flares_units(walk: Walk) -> None:
    keep = (UNITS / "sotto-keep.service").read_bytes()
    walk.machines[COORDINATOR].write("/etc/systemd/system/sotto-keep.service", keep)
    site = (UNITS / "sotto-flare.service").read_bytes()
    for name, machine in walk.machines.items():
        content = site.replace(b"SITE", name.encode())
        machine.write("/etc/systemd/system/sotto-flare.service", content)


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


@contextmanager
def walking(folder: Path) -> Iterator[Walk]:
    """Four machines, each with what its owner has before the guide begins."""
    places = {"sotto": Path(sysconfig.get_path("purelib"))}
    for engine, own in ENGINES.items():
        places[engine] = own / "lib" / "python3.11" / "site-packages"
    shown = {folder / "mirror": "/mirror"}
    for name, packages in places.items():
        if packages.exists():
            mirror_of(packages, folder / "mirror" / name, f"/mirror/packages-{name}")
            (folder / "mirror" / f"packages-{name}").mkdir()
            shown[packages] = f"/mirror/packages-{name}"
    with running_machines((COORDINATOR, *HOLDERS), folder / "disks", shown) as machines:
        for number, name in enumerate(HOLDERS):
            write_images(folder / name, number)
            for file in (folder / name).rglob("*.png"):
                where = f"/srv/images/{file.relative_to(folder / name)}"
                machines[name].write(where, file.read_bytes())
        yield Walk(
            machines,
            carry={
                "`dist/": lambda walk: carry_the_wheel(walk, folder / "checkout"),
                "the public half": lambda walk: None,
                "this *node key*": lambda walk: None,
                "`/etc/sotto/enrolment.json`": carry_the_enrolment,
                "[`sotto-relay.service`]": carry_units,
                "this line": carry_the_host_key,
                "`/var/lib/sotto/charges.json`": carry_charges,
                "`requirements-": lambda walk: None,
                "each request": carry_requests,
                "each holder's certificate": carry_certificates,
                "[`sotto-superlink.service`]": carry_flowers_units,
                "`request/north.request.zip`": partial(carry_zips, "request/", "request", ""),
                "`north.signed.zip`": partial(carry_zips, "", "signed", "request/"),
                "[`sotto-flare.service`]": carry_flares_units,
            },
            waits={
                "sotto federation status": wait_for_the_hub,
                "sotto client budget": carry_an_image,
                "systemctl stop sotto-run@": wait_for_a_round,
                "cd /etc/sotto\nsotto enrolment revoke": wait_for_the_end,
            },
            checkout=lambda commands: build(folder / "checkout", commands),
        )


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """All of the guide, done, and then all that keeps a federation."""
    with walking(tmp_path_factory.mktemp("walk")) as walk:
        walk.follow(PAGE)
        walk.follow(UNITS / "upkeep.md")
        yield walk


def said_on(walk: Walk, machine: str, word: str) -> list[str]:
    """What commands with a word in them printed on a machine."""
    return [said for name, text, said in walk.said if name == machine and word in text]


def test_the_guide_can_be_followed(walked: Walk) -> None:
    (first,) = said_on(walked, COORDINATOR, "run --resume")
    assert "finished" in first or "epsilon" in first
    assert said_on(walked, COORDINATOR, "audit verify")


def test_no_port_of_a_holder_is_open_and_one_of_the_coordinators(walked: Walk) -> None:
    listening = "ss -ltnH | awk '{print $4}' | sed 's/.*://' | sort -u"
    for name in HOLDERS:
        assert walked.machines[name].must(listening).split() == []
    assert walked.machines[COORDINATOR].must(listening).split() == ["22"]


def test_holders_reach_nobody_but_the_coordinators_machine(walked: Walk) -> None:
    for number, name in enumerate(HOLDERS):
        for other in range(len(HOLDERS)):
            code, _ = walked.machines[name].run(
                f"timeout 3 bash -c ': > /dev/tcp/10.77.{other}.2/22' 2> /dev/null"
            )
            assert code != 0, (number, other)


def test_a_member_does_not_listen_in_anothers_place(walked: Walk) -> None:
    """North's own key, and east's account; and north's account, and east's folder."""
    ssh = "ssh -N -F none -o BatchMode=yes -o ExitOnForwardFailure=yes -o IdentitiesOnly=yes"
    ssh += " -o StrictHostKeyChecking=yes -o UserKnownHostsFile=/etc/sotto/known_hosts"
    ssh += " -i /etc/sotto/tunnel.key -R /run/sotto/{folder}/client.sock:/tmp/x {account}@{host}"
    for account, folder, word in (
        ("sotto-east", "east", "Permission denied"),
        ("sotto-north", "east", "remote port forwarding failed"),
        ("sotto", "north", "Permission denied"),
    ):
        command = ssh.format(folder=folder, account=account, host=COORDINATOR)
        code, said = walked.machines["north"].run(f"timeout 30 {command}", "sotto")
        assert code == 255 and word in said, said


def test_a_tunnel_is_no_shell(walked: Walk) -> None:
    ssh = "ssh -F none -o BatchMode=yes -o UserKnownHostsFile=/etc/sotto/known_hosts"
    ssh += f" -i /etc/sotto/tunnel.key sotto-north@{COORDINATOR} cat /etc/passwd"
    code, said = walked.machines["north"].run(f"timeout 30 {ssh}", "sotto")
    assert code != 0 and "root:" not in said


def test_who_is_revoked_is_let_in_no_more(walked: Walk) -> None:
    until(
        lambda: (
            "Permission denied"
            in walked.machines["south"].must("journalctl --no-pager -o cat -n 3 -u sotto-tunnel")
        ),
        "a tunnel that is refused",
        60.0,
    )


def test_every_key_is_its_owners_only(walked: Walk) -> None:
    for name, path in (("north", "north.key"), ("east", "east-2.key"), ("south", "south.key")):
        found = walked.machines[name].must(f"stat -c '%a %U' /etc/sotto/{path}").split()
        assert found == ["600", "sotto"]
    assert walked.machines["east"].run("test -e /etc/sotto/east.key")[0] == 1


@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_an_engine_carries_the_messages_in_place_of_tunnels(
    tmp_path_factory: pytest.TempPathFactory, engine: str
) -> None:
    """By its page; its worker processes import `platform` of the wheel, and know no checkout."""
    if not ENGINES[engine].exists():
        pytest.skip(f"{engine} is not installed: `make {engine}`")
    with walking(tmp_path_factory.mktemp(engine)) as walk:
        walk.follow(PAGE, until="6. A run")
        walk.follow(UNITS / f"{engine}.md")
        walk.follow(PAGE, first="6. A run", until="7. Afterwards")
        assert said_on(walk, COORDINATOR, "run --resume")
