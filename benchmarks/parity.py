"""Published code beside ours: the same inputs through both, and the largest differences.

    python benchmarks/parity.py METHOD --repository DIR
    python benchmarks/parity.py --all DIR [--page]

DIR is a checkout of the method's official repository, which you bring; `--all` takes a folder of
such checkouts, each with its repository's name or as owner+name. A checkout must be at the commit
below and unchanged. Nothing of it is copied; each comparison imports it in a process of its own.
Inputs are drawn with a fixed seed. Without arguments, all methods are listed with their repository
and commit. `--page` writes `docs/results/parity.md`. The exit code is 1 if something was refused
or could not be run.

Where paper and published code differ, ours runs with the options that name the code's choice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _scores import provenance
from _sizes import RESULTS

from methods.interface.registry import Registry

HERE = Path(__file__).resolve().parent
CLOSE = 3e-5
"""Largest share of the largest value at which two results count as the same in 32 bits."""
LIMIT = 600
"""Seconds after which a comparison is ended."""


@dataclass(frozen=True)
class Repository:
    """An official repository at one commit.

    Attributes:
        name: Owner and name.
        commit: All 40 digits.
        path: Folder that its code expects on `sys.path`.
        stand_ins: Modules that its code imports and that get an empty stand-in of ours.
    """

    name: str
    commit: str
    path: str = "."
    stand_ins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compared:
    """One method's comparison.

    Attributes:
        repository: Where the published code is.
        adapter: Module and function that yield quantities.
        left_out: What is not compared, or compared in another way than it runs, and why.
    """

    repository: Repository
    adapter: str
    left_out: str = ""


PFLLIB = Repository(
    "TsingZ0/PFLlib", "d832e76f6a23b833038949ec1e4fdefe63a4d350", "system", ("h5py",)
)
TIE = (
    "In the second round one client's convolutions differ by 1.5e-5: in one pooling window two "
    "values are equal but for rounding, and each side takes another one as its largest."
)
DROPOUT = "Dropout is off on both sides, as its draws cannot be the same."


def _pfllib(name: str, left_out: str = "") -> Compared:
    return Compared(PFLLIB, f"_parity_networks:{name}", left_out)


METHODS: Mapping[str, Compared] = {
    "pfedmoap": Compared(
        Repository(
            *("ljaiverson/pFedMoAP", "a481de35edc7c83244709f540f5fe573df4455dc", "."),
            ("Dassl", "prettytable"),
        ),
        "_parity_prompts:pfedmoap",
        "Ours runs with `gate_scale: 10`, `gate_pool: stride` and `moe_similarity: dot`. Not "
        "compared: 16-bit weights, one optimiser for all clients, and a pool that is overwritten "
        "within a round, which ours does not have.",
    ),
    "fedpgp": Compared(
        Repository(
            *("TianyuCuiOvO/FedPGP", "d43045b33f42beb192e8ac7b2da0222bf6cec3e6", "."),
            ("Dassl", "prettytable"),
        ),
        "_parity_prompts:fedpgp",
        "Ours runs with `clip_reference: placeholder`.",
    ),
    "trip": Compared(
        Repository(
            *("GongShuai8210/TRIP", "d4c8496c428c6560462e27e90491465b75f13570", "."),
            ("vanilla_clip", "fvcore"),
        ),
        "_parity_prompts:trip",
        "Ours runs with `clustering: published`, from the same seats. Moves to a GPU and to 16 "
        "bits, and hooks for pictures, do nothing; the tokenizer's vocabulary, which the "
        "repository lacks, is open_clip's. The published loss is a cross-entropy with the teacher, "
        "from which its entropy is subtracted. AdamW divides by the root of the mean square, so "
        "rounding of the smallest gradients is enlarged in the steps.",
    ),
    "fedotp": Compared(
        Repository(
            *("HongxiaLee/FedOTP", "9948611a2325adc5543e9185cf0aa92ff84a2936", "."), ("Dassl",)
        ),
        "_parity_prompts:fedotp",
        "Its routine stops a whole batch by mean progress; here it makes all 200 iterations, as "
        "ours does.",
    ),
    "fedtpg": Compared(
        Repository("boschresearch/FedTPG", "f141c2994b5a0695ac4667e6c62005b7627540c2"),
        "_parity_prompts:fedtpg",
        "All class names are asked for. Moves to a GPU and to 16 bits do nothing; the one function "
        "that it takes of einops is ours. ",
    ),
    "dp_fpl": Compared(
        Repository(
            *("linhhtran/DP-FPL", "cce74b479525c6f3fc16586e54c93669c72c63c0", "."), ("Dassl",)
        ),
        "_parity_prompts:dp_fpl",
        "Ours runs with `sign: published`. Noise is not compared: ours is another mechanism.",
    ),
    "fedclip": Compared(
        Repository(
            *("microsoft/PersonalizedFL", "441670edb5744d23af46867cce9a5fbec0f8ead3", "fedclip"),
            ("clip",),
        ),
        "_parity_prompts:fedclip",
        "Its adapter gets features of any length, ours of length one; here both get length one. "
        "SGD on both sides.",
    ),
    "pm_moe": Compared(
        Repository("dannis97500/PM-MOE", "ed9d2f18ab23987fa3d18edcca00c289abc16c13", "system"),
        "_parity_prompts:pm_moe",
        f"Over FedPer. Energy denoising is in no published code. {DROPOUT}",
    ),
    **{name: _pfllib(name) for name in ("fedprox", "fedper", "lg_fedavg", "fedrep", "fedbabu")},
    "fedavg": _pfllib("fedavg", TIE),
    "fedrod": _pfllib("fedrod"),
    "ditto": _pfllib("ditto", TIE),
    "moon": _pfllib("moon", "Ours runs with `projection: none`."),
    "scaffold": _pfllib("scaffold"),
    "fedproto": _pfllib(
        "fedproto",
        "Its training averages features while the network still moves; compared is its own "
        "function that averages them afterwards, as ours does.",
    ),
    "fedgh": _pfllib("fedgh", "The server takes all class means in one batch."),
    "gpfl": _pfllib(
        "gpfl",
        "Its guidance is the norm of a whole batch's differences, ours each example's; they are "
        "compared for one image. Conditions are of the broadcast embeddings, as in ours.",
    ),
    "dbe": _pfllib(
        "dbe",
        "Its term is half of ours, so its weight is twice as large here. Its first round, whose "
        "training it drops, is not compared.",
    ),
    "fedpcl": _pfllib(
        "fedpcl",
        "Its loss has a second term, the contrast with single clients' prototypes, which ours "
        "lacks; here that term gets the global prototypes, so that it equals the first.",
    ),
    "fedcp": _pfllib("fedcp", "Its Gumbel noise is off, as in ours."),
    "swad": Compared(
        Repository("khanrc/swad", "252190eb881169e736beccf51af5caaa5c5cf666"),
        "_parity_domains:swad",
        "Ours runs with `bookkeeping: published`. Compared is which segments are averaged.",
    ),
    "feddg_ga": Compared(
        Repository("MediaBrain-SJTU/FedDG-GA", "8d03a24a2af2155dc0b8978afacfdb659146bf62"),
        "_parity_domains:feddg_ga",
        "Compared is the step of the weights.",
    ),
    "elcfs": Compared(
        Repository(
            *("liuquande/FedDG-ELCFS", "0a281e408a43d5ab4486f213dd286dacc733dd41", "."),
            ("matplotlib", "SimpleITK"),
        ),
        "_parity_domains:elcfs",
        "Compared are the restyled images. Its training is for segmentation, ours for classes.",
    ),
    "ccst": Compared(
        Repository(
            *("JeremyCJM/CCST", "87c3e448cfa28c366b58d17f8dffc5d3d83574e5"),
            "style_transfer/AdaIN",
        ),
        "_parity_domains:ccst",
        "Compared are restyled maps. Its encoder and decoder of images are not in ours.",
    ),
    "stablefdg": Compared(
        Repository(
            *("savertm/StableFDG_github", "77eac350f8515c45630f60d2564863e3da8c8687"),
            "Dassl.pytorch/dassl/modeling/ops",
        ),
        "_parity_domains:stablefdg",
        "Compared is the highlighter. Styles are mixed by draws in another order on each side.",
    ),
    "fedadg": Compared(
        Repository("Haoxiang-Wang/FedADG", "1d34f2ad5b3299ccbdab0f804756d3f0a747f793"),
        "_parity_domains:fedadg",
        "Its training step, with its generator and discriminator; the network is our small one, "
        "whose features are as wide as its. The round around the step does not run as published.",
    ),
    "fedsr": Compared(
        Repository("atuannguyen/FedSR", "ba8d894a90fab9da3d62cce570bc8fe17a312a2d", "src"),
        "_parity_domains:fedsr",
        "The network is our small one in place of a ResNet; samples of z are the same numbers.",
    ),
}
"""By the name of our method."""


class Refused(Exception):
    """A folder that is not what it must be, in one sentence."""


def require_commit(folder: Path, repository: Repository) -> None:
    """Refuse a folder that is not a checkout of the repository's commit with unchanged code.

    Raises:
        Refused: If it is another commit, has changes, or is no checkout.
    """

    def git(*command: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *command],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    top = git("rev-parse", "--show-toplevel")
    found = git("rev-parse", "HEAD") if top and Path(top) == folder.resolve() else ""
    if found != repository.commit:
        raise Refused(
            f"--repository: {folder} is at commit {found or 'none'}; valid: a checkout of "
            f"{repository.name} at {repository.commit}"
        )
    if changed := git("diff", "--name-only", "HEAD", "--", "*.py"):
        raise Refused(
            f"--repository: {folder} has changes in {changed.split()[0]}; valid: the files of "
            f"commit {repository.commit}"
        )


def compare(compared: Compared, folder: Path) -> dict[str, Any]:
    """Return the rows and stand-ins of one comparison, made in a process of its own.

    Raises:
        Refused: If the folder is not the pinned commit, or the published code fails.
    """
    require_commit(folder, compared.repository)
    code = folder.resolve() / compared.repository.path
    stand_ins = json.dumps(compared.repository.stand_ins)
    # The user's code must not leave compiled files in the user's folder.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "_parity_run.py"), compared.adapter, str(code), stand_ins]
    done = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Refused(f"{compared.repository.name}: its code could not be run: {last}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """All quantities of one method."""
    yield "| quantity | numbers | largest | difference | share of the largest |"
    yield "|---|---:|---:|---:|---:|"
    for row in rows:
        yield (
            f"| {row['quantity']} | {row['values']:,} | {row['largest']:.3g} | "
            f"{row['absolute']:.1e} | {row['relative']:.1e}{mark(row)} |"
        )


def mark(row: Mapping[str, Any]) -> str:
    """What is behind a share that is not rounding."""
    return "" if row["relative"] <= CLOSE else f" **above {CLOSE:.0e}**"


def worst(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(rows, key=lambda row: float(row["relative"]))


def present(name: str, folder: Path) -> Path | None:
    """The checkout of a repository in a folder of checkouts."""
    owner, _, short = name.partition("/")
    places = (folder / f"{owner}+{short}", folder / owner / short, folder / short)
    return next((place for place in places if place.is_dir()), None)


def page(found: Found, failed: Mapping[str, str]) -> Iterator[str]:
    """The results as Markdown."""
    yield from ("# Our methods beside the published code", "")
    yield from (
        "The same drawn inputs go through the code that authors or PFLlib published and through",
        "ours, from the same start. The table has each method's worst quantity (a loss, gradient,",
        "step, aggregation or prediction): the largest difference, as a share of the published",
        f"code's largest value. {CLOSE:.0e} or less is rounding in 32 bits. Where published code",
        "differs from its paper, options of ours name the code's choice, so this page says nothing",
        "about papers. Networks are small and random: a whole training is not compared.",
        "Stand-ins are empty modules of ours that satisfy imports only.",
        "",
        "| method | published code | quantities | worst quantity | share of the largest |",
        "|---|---|---:|---|---:|",
    )
    for name, result in found.items():
        row, repository = worst(result["rows"]), METHODS[name].repository
        yield (
            f"| [`{name}`](#{name}) | {repository.name} {repository.commit[:7]} | "
            f"{len(result['rows'])} | {row['quantity']} | {row['relative']:.1e}{mark(row)} |"
        )
    agree = sum(not mark(worst(result["rows"])) for result in found.values())
    yield from ("", f"{agree} of {len(found)} methods agree to {CLOSE:.0e} in every quantity.", "")
    yield from (f"- `{name}`: {why}" for name, why in failed.items())
    others = [name for name in Registry().available() if name not in METHODS]
    yield f"Not compared here: {', '.join(f'`{name}`' for name in others)}."
    yield ""
    for name, result in found.items():
        yield from (f"## {name}", "")
        if METHODS[name].left_out:
            yield from (METHODS[name].left_out, "")
        if result["stand_ins"]:
            yield from ("Stand-ins: " + ", ".join(f"`{s}`" for s in result["stand_ins"]) + ".", "")
        yield from (*table(result["rows"]), "")
    yield from provenance()


Found = dict[str, dict[str, Any]]
"""What `compare` found, by the name of the method."""


def run(folder_of: Mapping[str, Path | None]) -> tuple[Found, dict[str, str]]:
    """Compare each method and print its table; return what was found and what failed."""
    found: Found = {}
    failed: dict[str, str] = {}
    for name, folder in folder_of.items():
        repository = METHODS[name].repository
        if folder is None:
            failed[name] = f"there was no checkout of {repository.name}."
            continue
        try:
            found[name] = compare(METHODS[name], folder)
        except (Refused, subprocess.TimeoutExpired) as error:
            failed[name] = str(error)
            print(error, file=sys.stderr)
            continue
        print(f"\n{name}: {repository.name} {repository.commit[:7]}")
        print("\n".join(table(found[name]["rows"])), flush=True)
    return found, failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", nargs="?", choices=sorted(METHODS))
    parser.add_argument("--repository", type=Path, metavar="DIR")
    parser.add_argument("--all", type=Path, metavar="DIR")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args(arguments)
    if given.all is None and (given.method is None or given.repository is None):
        for name, compared in METHODS.items():
            print(f"{name}: {compared.repository.name} at {compared.repository.commit}")
        return 0
    names = list(METHODS) if given.method is None else [given.method]
    if given.all is None:
        places: dict[str, Path | None] = dict.fromkeys(names, given.repository)
    else:
        places = {name: present(METHODS[name].repository.name, given.all) for name in names}
    found, failed = run(places)
    if given.page and found:
        # Where the checkouts are is no part of the result.
        text = "\n".join(page(found, failed)).replace(str(given.all or given.repository), "DIR")
        (RESULTS / "parity.md").write_text(text + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
