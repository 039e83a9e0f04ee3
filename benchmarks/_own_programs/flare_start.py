"""Waits until all sites are there, runs one job of FLARE's federated averaging, prints its name.

python flare_start.py KIT ADMIN SCRIPT CLIENTS VALUES ROUNDS
"""

import sys
import tempfile
import time

import numpy as np
from nvflare.app_common.np.recipes import NumpyFedAvgRecipe
from nvflare.fuel.flare_api.flare_api import new_secure_session

LATEST = 180.0
"""Seconds within which all sites must connect."""


def main(kit, admin, script, clients, values, rounds):
    recipe = NumpyFedAvgRecipe(
        name="fedavg",
        model=np.zeros(int(values), np.float32),
        min_clients=int(clients),
        num_rounds=int(rounds),
        train_script=script,
        train_args=values,
    )
    session = connected(admin, kit, int(clients))
    with tempfile.TemporaryDirectory() as folder:
        recipe.export(folder)
        name = session.submit_job(f"{folder}/fedavg")
    while not (session.get_job_status(name) or "").startswith("FINISHED"):
        time.sleep(0.5)
    status = session.get_job_status(name)
    session.close()
    if status != "FINISHED:COMPLETED":
        raise SystemExit(f"the job ended: {status}")


def connected(admin, kit, clients):
    end = time.monotonic() + LATEST
    while time.monotonic() < end:
        try:
            session = new_secure_session(admin, kit, timeout=10.0)
            while len(session.get_system_info().client_info) < clients and time.monotonic() < end:
                time.sleep(0.5)
            return session
        except Exception as error:  # the server is not there yet
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            time.sleep(1.0)
    raise SystemExit("the server is not there")


if __name__ == "__main__":
    main(*sys.argv[1:])
