"""The commands of `enrolment`; heavy imports happen inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from platform.cli.options import Json

enrolment_app = typer.Typer(
    help="Keys and enrolment for secure aggregation against an active server.",
    no_args_is_help=True,
)

EnrolmentFile = Annotated[Path, typer.Argument(metavar="FILE", help="The enrolment, JSON.")]
Member = Annotated[str, typer.Argument(metavar="NAME", help="A client's name.")]
PublicKey = Annotated[str, typer.Argument(metavar="PUBLIC", help="Its public key, 64 hex digits.")]


@enrolment_app.command("create")
def enrolment_create(
    folder: Annotated[Path, typer.Argument(help="A new folder for keys and enrolment.json.")],
    clients: Annotated[int, typer.Option(help="Clients of the simulation.", min=2)],
    as_json: Json = False,
) -> None:
    """Make keys and an enrolment for the clients of a simulation."""
    from platform.cli.enrolment import create_command

    create_command(folder, clients, as_json=as_json)


@enrolment_app.command("key")
def enrolment_key(
    key: Annotated[Path, typer.Argument(help="File of the private key; made if missing.")],
    as_json: Json = False,
) -> None:
    """Make a client's private key, or show its public half."""
    from platform.cli.enrolment import key_command

    key_command(key, as_json=as_json)


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
