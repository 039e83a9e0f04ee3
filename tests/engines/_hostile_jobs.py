"""Run in FLARE's environment: an admin submits jobs that would run something at the sites."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from nvflare.fuel.flare_api.flare_api import new_secure_session

from platform.relay.nvflare.keeping import job_files


def write_job(root: Path, name: str, sites: list[str], stolen: str) -> Path:
    """The relay's job, in which each end also makes a folder."""
    files = job_files(sites)
    files["meta.json"]["name"] = name
    for end in ("server", "client"):
        theft = {"id": "theft", "path": "os.mkdir", "args": {"path": f"{stolen}-{end}"}}
        files[f"app/config/config_fed_{end}.json"]["components"].append(theft)
    for path, tree in files.items():
        (root / name / path).parent.mkdir(parents=True, exist_ok=True)
        (root / name / path).write_text(json.dumps(tree))
    return root / name


def outcome(session, job: Path) -> str:
    """What became of a job, and what its sites said to it."""
    name = session.submit_job(str(job))
    found = session.wait_for_job(name, timeout=60.0, poll_interval=0.5)
    # FLARE's server writes a job's status before what the sites said to it.
    for _ in range(20):
        if "job_deploy_detail" in found:
            break
        time.sleep(0.5)
        found = session.get_job_meta(name)
    return f"{found['status']} {found['job_deploy_detail']}"


kit, *sites = sys.argv[1:]
session = new_secure_session(Path(kit).name, kit)
# A session that stays open keeps the process alive after an error.
with contextlib.closing(session), tempfile.TemporaryDirectory() as folder:
    stolen = Path(kit).parent / sites[0] / "stolen"
    code = write_job(Path(folder), "code", sites, str(stolen))
    (code / "app" / "custom").mkdir()
    (code / "app" / "custom" / "thief.py").write_text("")
    print("code:", outcome(session, code))
    print("class:", outcome(session, write_job(Path(folder), "class", sites, str(stolen))))
