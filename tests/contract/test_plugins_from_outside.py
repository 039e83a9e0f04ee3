"""Plug-ins of every kind outside the repository: the suites pass on good ones and find faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.contract import test_dataset, test_mechanism, test_model, test_transport
from platform.contract.plugin import rule_of
from tests.contract._outside import write_outside, write_pictures, write_plugin
from tests.contract.test_broken_rules import broken
from tests.contract.test_method_from_outside import run_from

pytestmark = pytest.mark.slow


def test_the_suites_pass_on_one_of_each_kind(tmp_path: Path):
    write_outside(tmp_path)
    code, said = run_from(tmp_path, "--plugins", ".", "--data-root", "data")
    assert code == 0, said[-4000:]
    assert " skipped" not in said
    assert int(said.split(" passed")[0].split()[-1]) >= 27
    code, said = run_from(
        tmp_path, "--plugins", ".", "--data-root", "models", "-k", "test_dataset.py"
    )
    assert code == 4 and "--data-root, task.root: own_dataset" in said and "Traceback" not in said


FAULTS = {
    "dataset": (
        (
            "swapped",
            ("labels += [label] *", "labels += [label if side == 'test' else 1 - label] *"),
            test_dataset.test_a_folder_with_a_class_s_name_has_its_images,
        ),
        (
            "beyond",
            ("labels += [label] *", "labels += [2 * label] *"),
            test_dataset.test_labels_and_domains_are_indices,
        ),
        (
            "leaking",
            ('for side in ("train", "test")', 'for side in ("train", "train")'),
            test_dataset.test_no_example_is_on_both_sides_or_has_two_labels,
        ),
        (
            "shuffled",
            ("labels += [label] *", "np.random.shuffle(paths); labels += [label] *"),
            test_dataset.test_it_is_the_same_each_time,
        ),
        (
            "deaf",
            ("request.chosen_domains(name, INFOS[0].domains)", "INFOS[0].domains"),
            test_dataset.test_domains_that_are_asked_for,
        ),
    ),
    "model": (
        (
            "joining",
            ("return found", "return found - found.mean(0) + 1"),
            test_model.test_an_image_is_encoded_by_itself,
        ),
        (
            "unseeded",
            ("torch.manual_seed(0)", "torch.seed()"),
            test_model.test_it_is_the_same_each_time,
        ),
        ("constant", ("return found", "return 0 * found + 1"), test_model.test_images_differ),
        (
            "nan",
            ("return found", "return found / 0"),
            test_model.test_features_are_finite_and_of_length_one,
        ),
    ),
    "mechanism": (
        (
            "long",
            ("clip(vector, self.clipping_norm)", "clip(vector, 2 * self.clipping_norm)"),
            test_mechanism.test_an_upload_moves_no_further_than_is_charged,
        ),
        (
            "quiet",
            ("(GAUSSIAN, self.client_deviation,", "(GAUSSIAN, self.client_deviation / 2,"),
            test_mechanism.test_its_noise_is_that_of_its_row,
        ),
        (
            "flat",
            (
                "noise.draw(GAUSSIAN, self.client_deviation, clipped.vector.size)",
                "self.client_deviation * (noise.draw(GAUSSIAN, 1.0, clipped.vector.size) > 0) * 2"
                " - self.client_deviation",
            ),
            test_mechanism.test_its_noise_is_that_of_its_row,
        ),
        (
            "elsewhere",
            (
                "noise.draw(GAUSSIAN, self.client_deviation, clipped.vector.size)",
                "__import__('numpy').random.normal(0, self.client_deviation, clipped.vector.size)",
            ),
            test_mechanism.test_equal_generators_give_equal_noise,
        ),
        (
            "cheap",
            ("standard_deviation=self.client_", "standard_deviation=9 * self.client_"),
            test_mechanism.test_its_noise_is_that_of_its_row,
        ),
    ),
    "transport": (
        (
            "dropping",
            ("sendall(framed(handle(", "sendall(framed(b'' and handle("),
            test_transport.test_packets_arrive_whole,
        ),
        (
            "altering",
            ("return _received(sock)", "return _received(sock).replace(b'\\r\\n', b'\\n')"),
            test_transport.test_packets_arrive_whole,
        ),
        (
            "inventing",
            ("return _received(sock)", "return _received(sock) or b'lost'"),
            test_transport.test_packets_arrive_whole,
        ),
        (
            "waiting",
            ("sock.settimeout(seconds)", "sock.settimeout(None)"),
            test_transport.test_silence_ends_in_time,
        ),
        (
            "mixing",
            (
                "self.request.sendall(framed(handle(_received(self.request))))",
                "LAST[:] = LAST[-1:] + [handle(_received(self.request))]; "
                "self.request.sendall(framed(LAST[0]))",
            ),
            test_transport.test_answers_are_not_mixed,
        ),
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_each_planted_fault_breaks_its_rule(tmp_path: Path, kind: str):
    for name, change, _ in FAULTS[kind]:
        path = write_plugin(tmp_path, kind, name, (change,))
        if "LAST" in change[1]:
            path.write_text(f"{path.read_text()}\n\nLAST: list[bytes] = []\n")
        if kind == "dataset":
            write_pictures(tmp_path / "data", name)
    suite = f"test_{kind}"
    code, said = run_from(tmp_path, "--plugins", ".", "--data-root", "data", "-k", suite)
    assert code == 1, said[-4000:]
    for name, _, rule in FAULTS[kind]:
        assert name in broken(said).get(rule_of(rule), ()), (name, broken(said))
