"""FedAvg: all of the network is shared.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
Algorithm 1: clients train the whole network, the server averages by number of examples.
"""

from __future__ import annotations

from methods.networks.extractors import NetworkConfig
from methods.networks.method import SplitMethod

VARIANTS = ({"network": "fasttext"}, {"network": "clip", "lora_rank": 2})

Config = NetworkConfig


class FedAvg(SplitMethod):
    """Federated averaging: nothing is personal."""


build = FedAvg.built
