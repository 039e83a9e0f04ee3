"""The commands of `enrolment`; heavy imports happen inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.command_line import CommandLine
from platform.cli.options import Json

enrolment_app = CommandLine(
    help="Whose keys are whose, for secure aggregation against an active server. Each client makes "
    "its own key, where it stays: python -m platform.client keys create.",
    no_args_is_help=True,
)

EnrolmentFile = Annotated[Path, typer.Argument(metavar="FILE", help="The enrolment, JSON.")]
Member = Annotated[str, typer.Argument(metavar="NAME", help="A client's name.")]
PublicKey = Annotated[str, typer.Argument(metavar="PUBLIC", help="Its public key, 64 hex digits.")]


@enrolment_app.command("create-for-development")
def enrolment_create_for_development(
    folder: Annotated[Path, typer.Argument(help="A new folder for keys and enrolment.json.")],
    clients: Annotated[int, typer.Option(help="Clients of the simulation.", min=2, max=100_000)],
    as_json: Json = False,
) -> None:
    """Make all keys and an enrolment in one folder, for a simulation; never for a federation."""
    from platform.cli.enrolment import create_command

    create_command(folder, clients, as_json=as_json)


@enrolment_app.command("show")
def enrolment_show(file: EnrolmentFile, as_json: Json = False) -> None:
    """Show who is enrolled, with the fingerprints to compare."""
    from platform.cli.enrolment import show_command

    show_command(file, as_json=as_json)


@enrolment_app.command("add")
def enrolment_add(
    file: EnrolmentFile, name: Member, public: PublicKey, as_json: Json = False
) -> None:
    """Enrol a client."""
    from platform.cli.enrolment import change_command, parse_public

    change_command(file, lambda known: known.enrol(name, parse_public(public)), as_json=as_json)


@enrolment_app.command("rotate")
def enrolment_rotate(
    file: EnrolmentFile, name: Member, public: PublicKey, as_json: Json = False
) -> None:
    """Give a client another key; the old one is never valid again."""
    from platform.cli.enrolment import change_command, parse_public

    change_command(file, lambda known: known.rotate(name, parse_public(public)), as_json=as_json)


@enrolment_app.command("revoke")
def enrolment_revoke(file: EnrolmentFile, name: Member, as_json: Json = False) -> None:
    """Let a client take part no more."""
    from platform.cli.enrolment import change_command

    change_command(file, lambda known: known.revoke(name), as_json=as_json)


@enrolment_app.command("bind")
def enrolment_bind(
    file: EnrolmentFile,
    name: Member,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="Its node's public key, as OpenSSH writes it.")
    ],
    as_json: Json = False,
) -> None:
    """Bind a client to the key by which engines or tunnels know its machine; any older one goes."""
    from platform.cli.enrolment import change_command, parse_node

    change_command(file, lambda known: known.bind(name, parse_node(node)), as_json=as_json)


@enrolment_app.command("node")
def enrolment_node(file: EnrolmentFile, name: Member) -> None:
    """Print the node key of a client, for the server that lets its machine in."""
    from platform.cli.enrolment import show_node_command

    show_node_command(file, name)
