"""The coordinator: rounds, attempts and stages, the ledger before all that leaves a client."""
