"""Both ends of Flower's own SecAgg+, without training: an app for SuperNodes."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import arrayrecord_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD
from flwr.serverapp import ServerApp

EXAMPLES = 1000
"""The weight of each client; the greatest weight has the smallest rounding error."""
server = ServerApp()


def vector(values):
    return np.linspace(-1.0, 1.0, values, dtype=np.float32)


class Fixed(NumPyClient):
    """Returns the same values, whatever the server sends."""

    def __init__(self, values):
        self.values = values

    def fit(self, parameters, config):
        """Return the values, the weight and no metrics."""
        return [vector(self.values)], EXAMPLES, {}


client = ClientApp(
    lambda context: Fixed(int(context.run_config["values"])).to_client(), mods=[secaggplus_mod]
)


class All(FedAvg):
    """Refuses a round in which a client was lost."""

    def aggregate_fit(self, number, results, failures):
        """Aggregate the summed values."""
        if failures or len(results) != self.min_fit_clients:
            raise RuntimeError(f"round {number}: clients were lost")
        return super().aggregate_fit(number, results, failures)


@server.main()
def main(grid, context):
    asked, seconds = context.run_config, []
    clients, values = int(asked["clients"]), int(asked["values"])
    securely = SecAggPlusWorkflow(
        num_shares=clients,
        reconstruction_threshold=int(asked["threshold"]),
        max_weight=float(EXAMPLES),
    )

    def timed(grid, context):
        began = time.perf_counter()
        securely(grid, context)
        seconds.append(time.perf_counter() - began)

    strategy = All(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters([np.zeros(values, np.float32)]),
    )
    config = ServerConfig(num_rounds=int(asked["rounds"]))
    context = LegacyContext(context=context, config=config, strategy=strategy)
    DefaultWorkflow(fit_workflow=timed)(grid, context)
    record = context.state.array_records[MAIN_PARAMS_RECORD]
    found = parameters_to_ndarrays(arrayrecord_to_parameters(record, keep_input=True))
    said = {"seconds": seconds, "error": float(np.abs(found[0] - vector(values)).max())}
    whole = Path(str(asked["result"]))
    part = whole.with_suffix(".part")
    part.write_text(json.dumps(said), "utf-8")
    part.rename(whole)
