"""Each round in MLflow; `pip install mlflow`, then look: `mlflow ui --backend-store-uri URL`."""

import mlflow

import sotto

URL = "sqlite:///mlflow.db"


def show(found):
    values = {f"epsilon_{party}": value for party, value in found.epsilon._asdict().items()}
    if found.accuracy is not None:
        values["accuracy"] = found.accuracy
    mlflow.log_metrics(values, step=found.number)


mlflow.set_tracking_uri(URL)
with mlflow.start_run():
    run = sotto.run("quickstart", rounds=3, on_round=show)
    mlflow.log_params({"run": run.id, "method": run.config["method"]["name"], "delta": run.delta})
    print(f"{URL}: accuracy {run.accuracy:.1%} at epsilon {run.epsilon.server:.2f}")
