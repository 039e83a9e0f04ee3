"""A private federated run: accuracy, epsilon, a report and a picture."""

import sotto

run = sotto.run("quickstart", rounds=3)
print(f"accuracy {run.accuracy:.1%}; epsilon {run.epsilon.server:.2f} at delta {run.delta:g}")
print(run.rounds)
run.report("report.html")
run.plot("accuracy.svg")
