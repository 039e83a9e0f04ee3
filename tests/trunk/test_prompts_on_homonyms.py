"""What prompts have to learn on `homonyms`: together clients learn what names mean."""

from __future__ import annotations

from tests.trunk._runs import NONE, Storage

TASK = (
    NONE,
    "task={dataset: homonyms, domains: [clipart, sketch], senses: theatre, clients: 5, shots: 4, "
    "test_per_class: 10}",
    "secure_aggregation.enabled=false",
    "cohort.dropout_rate=0.0",
    "evaluation.local_twins=false",
)
LEARNED = (
    "method={name: promptfl, context_tokens: 4}",
    "training={local_steps: 10, batch_size: 16, learning_rate: 0.03}",
    "rounds=4",
)


def accuracy(storage: Storage, *overrides: str) -> float:
    return float(storage.run(*TASK, *overrides).summary["final"]["accuracy"]["mean"])


def test_learned_prompts_beat_the_bare_name_and_come_near_the_named_sense(storage: Storage):
    """All twenty names at every client, in one sense that no caption tells but the last."""
    everywhere = "task.partition.kind=iid"
    bare, named = (
        accuracy(
            storage, everywhere, f"method={{name: zero_shot, template: {template}}}", "rounds=1"
        )
        for template in ("'a photo of a {}.'", "'a photo of a theatre {}.'")
    )
    learned = accuracy(storage, everywhere, *LEARNED)
    assert bare < 0.5 and named > 0.9
    assert learned > bare + 0.3
    assert learned > named - 0.1
