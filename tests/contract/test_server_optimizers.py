"""A server optimiser that is not valid is refused by the name of what is wrong in it."""

from __future__ import annotations

import pytest

from methods import Registry, Task
from platform.contract.cases import Case
from platform.contract.test_server import ADAM, under
from platform.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "lion"}, r"method\.server_optimizer\.name: 'lion' is unknown; valid: sgd, "),
        ({}, r"method\.server_optimizer\.name: None is unknown; valid: sgd, "),
        ({"name": "adam"}, r"method\.server_optimizer\.learning_rate: is missing"),
        ({"name": "sgd", "momentum": 1.0}, r"method\.server_optimizer\.momentum: 1\.0 is not"),
        (
            {"name": "sgd", "tau": 1.0},
            r"tau: is not a known option of sgd; valid: ",
        ),
        ({**ADAM, "tau": 0.0}, r"method\.server_optimizer\.tau: 0\.0 is not valid"),
        ({**ADAM, "beta_2": "0.9"}, r"method\.server_optimizer\.beta_2: '0\.9' is not valid"),
        ({**ADAM, "learning_rate": float("inf")}, r"server_optimizer\.learning_rate: inf is not"),
        ("adam", r"method\.server_optimizer: 'adam' is not valid"),
    ],
)
def test_an_optimiser_that_is_not_valid_is_refused_by_name(given, said, task: Task):
    case = Case("promptfl", "promptfl", Registry(installed=False), {"context_tokens": 2})
    with pytest.raises(ConfigError, match=said):
        under(case, task, given)
