"""A client of NVIDIA FLARE's federated averaging that does not train.

python flare_client.py VALUES
"""

import sys

import numpy as np
import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants

own = np.linspace(-1.0, 1.0, int(sys.argv[1]), dtype=np.float32)
flare.init()
while flare.is_running():
    message = flare.receive()
    if message is None:
        break
    got = message.params[NPConstants.NUMPY_KEY]
    # The server sends the average of the previous round.
    if message.current_round > 0 and np.abs(got - own).max() > 1e-6:
        raise SystemExit(f"round {message.current_round}: the server did not send the average")
    flare.send(flare.FLModel(params={NPConstants.NUMPY_KEY: own}))
