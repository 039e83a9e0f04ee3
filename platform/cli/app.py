"""Commands and exit codes.

Exit codes: 0 done; 1 a run could not go on, or its records do not agree; 2 bad input; 3 an audit
log, or what it tells of, does not verify; 129, 130 and 143 ended by SIGHUP, Ctrl-C and SIGTERM.
Heavy imports happen inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from platform.cli.audit_commands import audit_app
from platform.cli.backup_commands import backup_app
from platform.cli.cache_commands import cache_app
from platform.cli.command_line import CommandLine
from platform.cli.completing import config_names
from platform.cli.ending import end_with
from platform.cli.enrolment_commands import enrolment_app
from platform.cli.federation_commands import federation_app
from platform.cli.model_commands import model_app
from platform.cli.new_commands import new_app
from platform.cli.options import (
    ABOUT,
    DEFAULT_STORAGE,
    METHODS,
    Config,
    Json,
    Reference,
    Storage,
    Version,
)
from platform.cli.page_commands import page_app
from platform.cli.plot_commands import plot_app
from platform.cli.report_commands import report_app
from platform.cli.schema_commands import schema_app

app = CommandLine(
    name="python -m platform.coordinator",
    help=ABOUT,
    no_args_is_help=False,
)
app.add_typer(audit_app, name="audit")
app.add_typer(enrolment_app, name="enrolment")
app.add_typer(cache_app, name="cache")
app.add_typer(federation_app, name="federation")
app.add_typer(new_app, name="new")
app.add_typer(report_app)
app.add_typer(model_app)
app.add_typer(backup_app)
app.add_typer(page_app)
app.add_typer(plot_app)
app.add_typer(schema_app)

MethodsOption = Annotated[Path | None, METHODS]


@app.callback(invoke_without_command=True)
def default(context: typer.Context, version: Version = False) -> None:
    """Run the quickstart if no command is given."""
    if context.invoked_subcommand is None:
        from platform.bootstrap import Surroundings
        from platform.cli.running import run_command

        run_command(Path("quickstart"), [], Surroundings(), as_json=False)


@app.command()
def run(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A YAML file, or a packaged name such as quickstart.", autocompletion=config_names
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key: section.key=value. Repeatable."),
    ] = None,
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
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed.")] = None,
    reference: Reference = False,
    methods_: MethodsOption = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Run a federation from a configuration, resume one, or add a second phase to one."""
    from platform.bootstrap import Surroundings
    from platform.cli.running import resume_command, run_command, second_phase_command
    from platform.errors import ConfigError

    surroundings = Surroundings.with_methods(methods_, as_published=reference)
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


@app.command()
def sweep(
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG...",
            help="YAML files, or packaged names.",
            autocompletion=config_names,
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(help="Methods between commas; default is each configuration's own."),
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Seeds between commas, as 0,1,2.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="section.key=value; values between commas make an axis. Noise keys do not go "
            "with privacy.mechanism=none on an axis; make privacy={...},{...} the axis then.",
        ),
    ] = None,
    for_: Annotated[
        list[str] | None,
        typer.Option("--for", help="METHOD:section.key=value, for that method only."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Worker processes; default is one a CPU, one with CUDA.", min=1, max=1024
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the results; default sweeps/NAME-DIGEST.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="dask: a job a cell, each with a database of its own in OUTPUT/cells, a folder "
            "that all machines see."
        ),
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=VALUE: timeout_min=60 for each job; scheduler=tcp://HOST:8786, or "
            "scheduler_file=FILE."
        ),
    ] = None,
    reference: Reference = False,
    methods_: MethodsOption = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: Json = False,
) -> None:
    """Run a grid of configurations, or go on with one, and write tables and plots."""
    from platform.cli.sweep import ClusterOptions, SweepOptions, sweep_command

    options = SweepOptions(
        configs=tuple(configs),
        methods=method,
        seeds=seed,
        settings=tuple(set_ or ()),
        method_settings=tuple(for_ or ()),
        device=device,
        folder=methods_,
        storage=storage,
    )
    where = ClusterOptions(on, tuple(cluster or ()))
    sweep_command(
        *(options, where), jobs=jobs, output=output, as_published=reference, as_json=as_json
    )


@app.command()
def methods(methods_: MethodsOption = None, as_json: Json = False) -> None:
    """List the methods and their options."""
    from platform.cli.listing import print_methods

    print_methods(methods_, as_json=as_json)


@app.command()
def configs(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="Show this one in full, with all that it extends.", autocompletion=config_names
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key of CONFIG. Repeatable.")
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="List all keys and what they mean.")] = False,
    reference: Reference = False,
    methods_: MethodsOption = None,
    as_json: Json = False,
) -> None:
    """List the packaged configurations, show one in full, or list all keys."""
    from platform.cli.configs import configs_command

    configs_command(
        *(config, list(set_ or []), methods_), keys=keys, as_published=reference, as_json=as_json
    )


@app.command()
def datasets(
    show: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG", help="Who would have what in a run of this configuration."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key of --show. Repeatable.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw --show into this .svg or .png.")] = None,
    check: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What is right and wrong with this data set's folder."),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What task.root would say; default data.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(help="What task.layout would say, where --check images tells two readings."),
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What task.class_names would say.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the data sets, show who would have what, or check a folder (exit code 1 on faults).

    A folder of images of your own is the data set `images`: --check images --root DIR says what it
    is recognised as, and which images are for training, validation and testing.
    """
    from platform.cli.datasets import DatasetsQuestion, datasets_command

    question = DatasetsQuestion(
        show=show,
        overrides=tuple(set_ or ()),
        plot=plot,
        check=check,
        root=root,
        layout=layout,
        class_names=class_names,
    )
    datasets_command(question, as_json=as_json)


@app.command("audit-privacy")
def audit_privacy(
    config: Config,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key: section.key=value. Repeatable."),
    ] = None,
    canaries: Annotated[
        int,
        typer.Option(help="Guesses a channel; more refute smaller lies.", min=100, max=1_000_000),
    ] = 2000,
    plot: Annotated[
        Path | None, typer.Option(help="Draw scores and claims into this .svg or .png.")
    ] = None,
    methods_: MethodsOption = None,
    as_json: Json = False,
) -> None:
    """Try to refute a configuration's privacy claim with canaries; exit code 1 if that works."""
    from platform.bootstrap import Surroundings
    from platform.cli.privacy_auditing import audit_privacy_command

    audit_privacy_command(
        *(config, list(set_ or []), Surroundings.with_methods(methods_)),
        canaries=canaries,
        plot=plot,
        as_json=as_json,
    )


@app.command()
def clipping(
    config: Config,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key: section.key=value. Repeatable."),
    ] = None,
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
        int | None, typer.Option(help="The first so many rounds; default all.", min=1, max=100_000)
    ] = None,
    methods_: MethodsOption = None,
    as_json: Json = False,
) -> None:
    """Choose privacy.clipping_norm by a dry run on public images; nothing is charged or kept."""
    from platform.bootstrap import Surroundings
    from platform.cli.clipping import ClippingQuestion, clipping_command

    question = ClippingQuestion(
        config=config,
        overrides=tuple(set_ or ()),
        dataset=dataset,
        root=None if root is None else str(root),
        rounds=rounds,
    )
    clipping_command(question, Surroundings.with_methods(methods_), as_json=as_json)


@app.command("secagg-plan")
def secagg_plan(
    clients: Annotated[int, typer.Option(help="Size of the cohort.", min=2, max=100_000)],
    corrupt_rate: Annotated[float, typer.Option(help="Share of it that may collude.")] = 0.05,
    dropout_rate: Annotated[float, typer.Option(help="Share of it that may be lost.")] = 0.1,
    length: Annotated[int, typer.Option(help="Values in a vector.", min=1, max=2**40)] = 65_536,
    ring_bits: Annotated[int, typer.Option(help="Bits of a value.", min=16, max=64)] = 32,
    as_json: Json = False,
) -> None:
    """Compute graph and threshold of secure aggregation, semi-honest and active."""
    from platform.cli.secagg_planning import PlanQuestion, secagg_plan_command

    question = PlanQuestion(
        clients=clients,
        corrupt_rate=corrupt_rate,
        dropout_rate=dropout_rate,
        length=length,
        ring_bits=ring_bits,
    )
    secagg_plan_command(question, as_json=as_json)


def main() -> None:
    """Run the command line and exit."""
    end_with(get_command(app))
