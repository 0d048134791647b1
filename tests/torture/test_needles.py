"""Files of needles: each is measured, or refused in one line."""

import json

import pytest

from tests.torture.cases import seeded
from tests.torture.hostile_json import hostile

pytestmark = [pytest.mark.torture, pytest.mark.slow]

TRIALS = [
    {"text": "the cat sat on the mat", "needle": "cat", "question": "the", "answer": "cat"},
    {"context": "a dog ran", "needle": [2, 5], "question": "a"},
]


@pytest.mark.parametrize("part", range(5))
def test_needles_are_measured_or_refused(cases, model_folder, part):
    path = cases.folder / "needles.jsonl"
    for number in range(100):
        drawing = seeded(f"needle {part} {number}")
        lines = [
            hostile(trial, drawing) if drawing.random() < 0.5 else json.dumps(trial) for trial in TRIALS
        ]
        path.write_text("\n".join(lines), encoding="utf-8")
        line = ["heads", model_folder("llama"), "--needle", path.name, "--generate", 2]
        cases.run(*line, "--format", "json", statuses=[0, 2], what=f"part {part}, needles {number}")
