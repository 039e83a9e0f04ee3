"""Both ends of Flower's own federated averaging, without training: an app for SuperNodes."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.app.message import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client, server = ClientApp(), ServerApp()


def vector(values):
    return np.linspace(-1.0, 1.0, values, dtype=np.float32)


class Timed(FedAvg):
    """Notes when each round begins and how long it takes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.began, self.seconds = 0.0, []

    def configure_train(self, *given):
        """Begin a round."""
        self.began = time.perf_counter()
        return super().configure_train(*given)

    def aggregate_train(self, number, replies):
        """End a round; losing a client is an error."""
        replies = list(replies)
        found = super().aggregate_train(number, replies)
        self.seconds.append(time.perf_counter() - self.began)
        if len(replies) != self.min_train_nodes or any(each.has_error() for each in replies):
            raise RuntimeError(f"round {number}: clients were lost")
        return found


@client.train()
def train(message, context):
    own = {"values": Array(vector(int(context.run_config["values"])))}
    content = {"arrays": ArrayRecord(own), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid, context):
    asked = context.run_config
    clients, values = int(asked["clients"]), int(asked["values"])
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    first = ArrayRecord({"values": Array(np.zeros(values, np.float32))})
    found = strategy.start(grid, first, num_rounds=int(asked["rounds"]))
    error = np.abs(found.arrays["values"].numpy() - vector(values)).max()
    said = {"seconds": strategy.seconds, "error": float(error)}
    whole = Path(str(asked["result"]))
    part = whole.with_suffix(".part")
    part.write_text(json.dumps(said), "utf-8")
    part.rename(whole)
