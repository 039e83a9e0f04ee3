"""Commands and exit codes.

Exit codes: 0 done; 1 a run could not go on, or its records do not agree; 2 bad input; 3 an audit
log, or a record that it covers, does not verify; 129, 130 and 143 ended by SIGHUP, Ctrl-C and
SIGTERM. Heavy imports happen inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.main import get_command

from platform.cli.command_line import (
    ABOUT,
    DEFAULT_STORAGE,
    PLUGINS,
    CommandLine,
    Config,
    Json,
    Reference,
    RunName,
    Storage,
    Version,
    config_names,
)
from platform.cli.ending import end_with
from platform.cli.record_commands import audit_app, report_app

app = CommandLine(name="python -m platform.coordinator", help=ABOUT, no_args_is_help=False)
cache_app = CommandLine(
    help="Outputs of frozen models on images, kept beside the database.", no_args_is_help=True
)
federation_app = CommandLine(help="A run whose clients are elsewhere.", no_args_is_help=True)
enrolment_app = CommandLine(
    help="Which client has which key, for secure aggregation against an active server. Each client "
    "makes and keeps its own key: sotto client keys create.",
    no_args_is_help=True,
)
app.add_typer(audit_app, name="audit")
app.add_typer(enrolment_app, name="enrolment")
app.add_typer(cache_app, name="cache")
app.add_typer(federation_app, name="federation")
app.add_typer(report_app)

OptionalConfig = Annotated[
    Path | None,
    typer.Argument(
        help="A YAML file, or a packaged name such as quickstart.", autocompletion=config_names
    ),
]
PluginsOption = Annotated[Path | None, PLUGINS]
EnrolmentFile = Annotated[Path, typer.Argument(metavar="FILE", help="The enrolment, JSON.")]
Member = Annotated[str, typer.Argument(metavar="NAME", help="A client's name.")]
PublicKey = Annotated[str, typer.Argument(metavar="PUBLIC", help="Its public key, 64 hex digits.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key: section.key=value. Repeatable.")
]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
ClientOption = Annotated[
    int | None,
    typer.Option(
        "--client", help="Use this simulated client's personal part, from 0.", min=0, max=99_999
    ),
]
BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup, a single file.")]
NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")]
Pseudonym = Annotated[str, typer.Argument(help="A client's pseudonym, as `restore` told it.")]


@app.callback(invoke_without_command=True)
def default(context: typer.Context, version: Version = False) -> None:
    """Run the quickstart if no command is given."""
    if context.invoked_subcommand is None:
        from platform.cli.running import run_command
        from platform.experiment.planning import Surroundings

        run_command(Path("quickstart"), [], Surroundings(), as_json=False)


@app.command()
def run(
    config: OptionalConfig = None,
    set_: SetOption = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on with this run; takes no CONFIG.")
    ] = None,
    phase_two_of: Annotated[
        str | None,
        typer.Option(
            "--phase-two-of",
            metavar="RUN",
            help="Personalise anew with this finished run's pool; takes no CONFIG.",
        ),
    ] = None,
    device: DeviceOption = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed.")] = None,
    reference: Reference = False,
    plugins: PluginsOption = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Run a federation from a configuration, resume one, or add a second phase to one."""
    from platform.cli.running import resume_command, run_command, second_phase_command
    from platform.errors import ConfigError
    from platform.experiment.planning import Surroundings

    surroundings = Surroundings.with_plugins(plugins, as_published=reference)
    overrides = list(set_ or [])
    if reference and config is None:
        raise ConfigError("--reference: needs a CONFIG, that of a paper's table")
    if device is not None:
        overrides.append(f"device={device}")
    if seed is not None:
        overrides.append(f"seed={seed}")
    if phase_two_of is not None:
        if config is not None or resume is not None:
            raise ConfigError(
                "--phase-two-of: takes the run's own configuration; leave CONFIG and --resume out"
            )
        second_phase_command(phase_two_of, overrides, storage, surroundings, as_json=as_json)
        return
    if resume is None:
        if storage != DEFAULT_STORAGE:
            overrides.append(f"storage.url={storage}")
        run_command(config or Path("quickstart"), overrides, surroundings, as_json=as_json)
        return
    if config is not None or overrides:
        raise ConfigError(
            "--resume: goes on with the run's own configuration; leave CONFIG, --set, --device "
            "and --seed out"
        )
    resume_command(resume, storage, surroundings, as_json=as_json)


MethodSettings = Annotated[
    list[str] | None, typer.Option("--for", help="METHOD:section.key=value, for that method only.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Worker processes; default is one per CPU, or one with CUDA.", min=1, max=1024
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        help="dask: a job per cell, each with its own database in OUTPUT/cells, a folder "
        "that all machines see."
    ),
]
Cluster = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        help="KEY=VALUE: timeout_min=60 for each job; scheduler=tcp://HOST:8786, or "
        "scheduler_file=FILE.",
    ),
]


@app.command(by="sweep.sweep_command")
def sweep(
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG...", help="YAML files, or packaged names.", autocompletion=config_names
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            "--method", help="Methods, separated by commas; default is each configuration's own."
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seed", help="Seeds, separated by commas: 0,1,2.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="section.key=value; values separated by commas make an axis. Noise keys do not go "
            "with privacy.mechanism=none on an axis; make privacy={...},{...} the axis then.",
        ),
    ] = None,
    method_settings: MethodSettings = None,
    jobs: Jobs = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the results; default sweeps/NAME-DIGEST.")
    ] = None,
    device: DeviceOption = None,
    on: On = None,
    cluster_settings: Cluster = None,
    as_published: Reference = False,
    folder: PluginsOption = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Run a grid of configurations, or go on with one, and write tables and plots."""


@app.command(by="sweep.study_command")
def study(
    methods: Annotated[
        list[str],
        typer.Argument(metavar="METHOD...", help="Names of methods; `sotto methods` lists them."),
    ],
    epsilon: Annotated[
        str, typer.Option(help="Targets of epsilon, separated by commas: none,8,2.")
    ] = "none",
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1, max=1000)] = 3,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of one's own images.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="YAML file, or packaged name; default is own-data with --data, else quickstart.",
            autocompletion=config_names,
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="The mechanism of the noise; default is the configuration's, or "
            "distributed_noise if it has none."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="section.key=value for all runs; several values make a further axis."
        ),
    ] = None,
    method_settings: MethodSettings = None,
    jobs: Jobs = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the results; default studies/NAME-DIGEST.")
    ] = None,
    on: On = None,
    cluster_settings: Cluster = None,
    folder: PluginsOption = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Compare methods over epsilon and seeds, with a table, a figure and paired tests."""


@app.command(by="configs.print_methods")
def methods(folder: PluginsOption = None, as_json: Json = False) -> None:
    """List the methods and their options."""


@app.command(by="configs.configs_command")
def configs(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="Show this one in full, with all that it extends.", autocompletion=config_names
        ),
    ] = None,
    overrides: SetOption = None,
    keys: Annotated[bool, typer.Option("--keys", help="List all keys and what they mean.")] = False,
    papers: Annotated[bool, typer.Option("--papers", help="List those of papers' tables.")] = False,
    as_published: Reference = False,
    folder: PluginsOption = None,
    as_json: Json = False,
) -> None:
    """List the packaged configurations, show one in full, or list all keys."""


@app.command(by="datasets.datasets_command")
def datasets(
    show: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG", help="Show what each client of this configuration holds."),
    ] = None,
    overrides: SetOption = None,
    plot: Annotated[Path | None, typer.Option(help="Draw --show as .svg, .png or .pdf.")] = None,
    check: Annotated[
        str | None, typer.Option(metavar="NAME", help="Check the folder of this data set.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Value of task.root; default data.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="Value of task.layout, if --check images finds two readings.")
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Value of task.class_names.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the data sets, show what clients hold, or check a folder (exit code 2 on faults).

    A folder of images of your own is the data set `images`: --check images --root DIR names its
    layout, and tells which images are for training, validation and testing.
    """


@app.command(by="advising.advise_command")
def advise(
    config: OptionalConfig = None,
    clients: Annotated[int | None, typer.Option(help="Clients.", min=1, max=100_000)] = None,
    images: Annotated[int | None, typer.Option(help="Of a client.", min=1, max=10_000_000)] = None,
    classes_each: Annotated[
        str | None, typer.Option(metavar="N|all", help="Classes of a client.")
    ] = None,
    groups: Annotated[
        bool | None, typer.Option("--groups", help="Groups see classes differently.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Of the run.", min=0.0, max=1e6)] = None,
    mechanism: Annotated[str | None, typer.Option(help="Default distributed_noise.")] = None,
    as_json: Json = False,
) -> None:
    """Say what a federation gains over a client alone, from public numbers and measured ones.

    Options override keys of CONFIG. It reads no folder: counts of images are private, and who joins
    because of them tells others what they are.
    """


@app.command("audit-privacy", by="trying.audit_privacy_command")
def audit_privacy(
    config: Config,
    overrides: SetOption = None,
    canaries: Annotated[
        int,
        typer.Option(help="Guesses per channel; more refute smaller lies.", min=100, max=1_000_000),
    ] = 2000,
    plot: Annotated[
        Path | None, typer.Option(help="Draw scores and claims into a .svg, .png or .pdf.")
    ] = None,
    folder: PluginsOption = None,
    as_json: Json = False,
) -> None:
    """Try to refute a configuration's privacy claim with canaries; exit code 1 if that works."""


@app.command(by="trying.clipping_command")
def clipping(
    config: Config,
    overrides: SetOption = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Public data set of the same classes; default the task's."
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Its folder; shapes and homonyms are rendered instead."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Run only this many rounds; default all.", min=1, max=100_000)
    ] = None,
    folder: PluginsOption = None,
    as_json: Json = False,
) -> None:
    """Choose privacy.clipping_norm by a dry run on public images; nothing is charged or kept."""


@app.command("secagg-plan", by="federation.secagg_plan_command")
def secagg_plan(
    clients: Annotated[int, typer.Option(help="Size of the cohort.", min=2, max=100_000)],
    corrupt_rate: Annotated[float, typer.Option(help="Share that may collude.")] = 0.05,
    dropout_rate: Annotated[float, typer.Option(help="Share that may be lost.")] = 0.1,
    length: Annotated[int, typer.Option(help="Values in a vector.", min=1, max=2**40)] = 65_536,
    ring_bits: Annotated[int, typer.Option(help="Bits of a value.", min=16, max=64)] = 32,
    as_json: Json = False,
) -> None:
    """Compute graph and threshold of secure aggregation, semi-honest and active."""


# Help lists the commands of `report_app` last, in this order.
@report_app.command(by="models.export_command")
def export(
    run_id: RunName,
    *,
    output: Annotated[Path | None, typer.Option(help="Folder; default exports/RUN.")] = None,
    client: ClientOption = None,
    folder: PluginsOption = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Write the trained prompts as safetensors, with a model card."""


@report_app.command(by="models.predict_command")
def predict(
    run_id: RunName,
    files: Annotated[
        list[Path], typer.Argument(help="Image files, or text files with one text each.")
    ],
    *,
    client: ClientOption = None,
    folder: PluginsOption = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Classify images, or texts, with what a run trained."""


@report_app.command(by="keeping.backup_command")
def backup(file: BackupFile, storage: Storage = DEFAULT_STORAGE, as_json: Json = False) -> None:
    """Back up the database and its runs' records into a new FILE, also while a run goes on.

    FILE appears only when it is complete and checked. Keys, enrolment files, images and data
    holders' own stores are not in it. It holds what the database holds, with its pool entries,
    for as long as you keep it.
    """


@report_app.command(by="keeping.restore_command")
def restore(file: BackupFile, storage: Storage = DEFAULT_STORAGE, as_json: Json = False) -> None:
    """Bring a backup back; the database's folder must be missing or empty.

    If clients are data holders, a run that went on after the backup cannot go on from it: they
    know of later rounds than the database, and say so.
    """


@report_app.command(by="keeping.upgrade_command")
def upgrade(storage: Storage = DEFAULT_STORAGE, as_json: Json = False) -> None:
    """Bring the database, and simulated clients' stores beside it, to this version's schema."""


@report_app.command(by="keeping.charges_command")
def charges(
    pseudonym: Pseudonym, file: NewFile, storage: Storage = DEFAULT_STORAGE, as_json: Json = False
) -> None:
    """Write what one client was charged into a new FILE, for its owner.

    A client whose store came back from a backup takes FILE over with `catch-up`.
    """


@report_app.command(by="page_records.page_command")
def serve(
    *,
    host: Annotated[
        str, typer.Option(help="Address to serve at; all but localhost need token and TLS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")] = 8765,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="HOST", help="Another host name, such as a proxy's. Repeatable."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of the readers' token; of mode 600.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve by TLS with this (PEM).")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="SOCKET", help="federation.socket: show the clients connected there."),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Serve a read-only page of runs, budgets and the audit log; it follows unfinished runs."""


@report_app.command(by="datasets.plot_command")
def plot(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SWEEP", help="A run's id, `latest`, or the folder of a sweep's results."
        ),
    ],
    *,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            help="curves, tradeoff, clients, experts, holdings; of a sweep also final and axes. "
            "Repeatable; default is all for which there are data.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|FOLDER",
            help="A .svg, .png or .pdf for one picture, or a folder; default pictures/NAME.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Draw a run or a sweep, as SVG, PNG and PDF: accuracy, epsilon, clients, experts, holdings."""


@report_app.command(by="schemas.schemas_command")
def schemas(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print this one, as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the JSON Schemas of all outputs and errors, or print one."""


@cache_app.command("list", by="keeping.list_command")
def cache_list(storage: Storage = DEFAULT_STORAGE, as_json: Json = False) -> None:
    """Show what is cached: models, images, size and when it was used last."""


@cache_app.command("clear", by="keeping.clear_command")
def cache_clear(
    model: Annotated[
        str | None, typer.Option(help="A model's name, or the start of its fingerprint.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All models.")] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Delete what is cached; later runs encode their images anew."""


@federation_app.command("status", by="federation.status_command")
def federation_status(
    socket: Annotated[
        Path, typer.Argument(metavar="SOCKET", help="The run's federation.socket.")
    ] = Path("runs/hub.sock"),
    storage: Annotated[
        str | None,
        typer.Option("--storage", help="The coordinator's database: show who is behind, or left."),
    ] = None,
    run_id: Annotated[
        str, typer.Option("--run", metavar="RUN", help="The run in it; default is the newest.")
    ] = "latest",
    as_json: Json = False,
) -> None:
    """Show which clients are reachable, awaited or behind, and which refused last."""


@federation_app.command("remove", by="federation.remove_command")
def federation_remove(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or `latest`.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="One of federation.clients.")],
    statement: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file that the client's command `leave` wrote."),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    *,
    as_json: Json = False,
) -> None:
    """Take a client off a run for good: its machine is lost, or it sent its statement as a file.

    End the run first, and resume it afterwards. Nothing is erased on the client's machine; its
    charges stay.
    """


@app.command("new", by="configs.new_plugin_command")
def new(
    kind: Annotated[
        Literal["method", "dataset", "model", "mechanism", "transport"],
        typer.Argument(metavar="KIND", help="method, dataset, model, mechanism or transport."),
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name: small letters, digits and _.")
    ],
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of plug-ins, made if missing; default is this folder, or for a method in "
            "a checkout of Sotto its folders of methods, presets and tests.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write something of your own that works, and a test that fails until you fill it in."""


@enrolment_app.command("create-for-development", by="federation.create_command")
def enrolment_create_for_development(
    folder: Annotated[Path, typer.Argument(help="A new folder for keys and enrolment.json.")],
    clients: Annotated[int, typer.Option(help="Clients of the simulation.", min=2, max=100_000)],
    as_json: Json = False,
) -> None:
    """Make all keys and an enrolment in one folder, for a simulation; never for a federation."""


@enrolment_app.command("show", by="federation.show_command")
def enrolment_show(file: EnrolmentFile, as_json: Json = False) -> None:
    """Show who is enrolled, with the fingerprints to compare."""


@enrolment_app.command("add")
def enrolment_add(
    file: EnrolmentFile, name: Member, public: PublicKey, as_json: Json = False
) -> None:
    """Enrol a client."""
    from platform.cli.federation import change_command, parse_public

    change_command(file, lambda known: known.enrol(name, parse_public(public)), as_json=as_json)


@enrolment_app.command("rotate")
def enrolment_rotate(
    file: EnrolmentFile, name: Member, public: PublicKey, as_json: Json = False
) -> None:
    """Give a client another key; the old one is never valid again."""
    from platform.cli.federation import change_command, parse_public

    change_command(file, lambda known: known.rotate(name, parse_public(public)), as_json=as_json)


@enrolment_app.command("revoke")
def enrolment_revoke(file: EnrolmentFile, name: Member, as_json: Json = False) -> None:
    """Stop a client from taking part."""
    from platform.cli.federation import change_command

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
    """Bind a client to the key by which engines or tunnels know its machine; drop an older one."""
    from platform.cli.federation import change_command, parse_node

    change_command(file, lambda known: known.bind(name, parse_node(node)), as_json=as_json)


@enrolment_app.command("node", by="federation.show_node_command")
def enrolment_node(file: EnrolmentFile, name: Member) -> None:
    """Print the node key of a client, for the server that lets its machine in."""


def main() -> None:
    """Run the command line and exit."""
    end_with(get_command(app))
