from pathlib import Path

import numpy as np
import pytest
import yaml

from afd_dse.errors import InputError
from afd_dse.search.space import BatchGrid, load_space
from afd_dse.spec.cells import Phase, parse_partition
from tests.strategies import space


@pytest.mark.parametrize("name", ["default", "quick", "wide"])
def test_spaces_that_ship_are_readable(name: str) -> None:
    assert load_space(name).name == name


def test_a_batch_grid_is_geometric_and_keeps_its_ends() -> None:
    grid = BatchGrid(first=0.25, last=2048, per_octave=6)
    values = grid.values()
    assert values[0] == 0.25
    assert values[-1] == pytest.approx(2048)
    assert len(values) == 13 * 6 + 1
    assert np.allclose(values[1:] / values[:-1], grid.ratio)


def test_a_batch_grid_of_one_value() -> None:
    assert BatchGrid(first=3, last=3, per_octave=2).values().tolist() == [3.0]


def problems(path: Path) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        load_space(path)
    return {problem.field: problem.message for problem in caught.value.problems}


def written(tmp_path: Path, **changes: object) -> Path:
    document = space().model_dump(mode="json")
    document["whole"] |= changes
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_space_file_is_read_back(tmp_path: Path) -> None:
    assert load_space(written(tmp_path)) == space()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpus": [0]}, "search.space.whole.gpus.0"),
        ({"tp": "many"}, "search.space.whole.tp"),
        ({"colour": "red"}, "search.space.whole.colour"),
        ({"policies": ["chunked", "none"]}, "search.space.whole.policies.1"),
        ({"batch": {"first": -1, "last": 4, "per_octave": 1}}, "search.space.whole.batch.first"),
        ({"chunk_tokens": []}, "search.space.whole"),
    ],
)
def test_a_wrong_space_file_is_refused_at_its_field(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    assert field in problems(written(tmp_path, **changes))


def test_a_batch_grid_that_ends_before_it_begins_is_refused(tmp_path: Path) -> None:
    assert problems(written(tmp_path, batch={"first": 8, "last": 4, "per_octave": 1}))


@pytest.mark.parametrize("text", ["name: [", "- 1\n- 2\n", "", "just words"])
def test_a_file_that_is_no_space_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    assert problems(path)


def test_an_unknown_space_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="default"):
        load_space("no-such-space")


@pytest.mark.parametrize(
    ("partition", "prefill", "decode"),
    [
        ("PA PF DA DF", "whole", "whole"),
        ("PA PF | DA DF", "whole", "whole"),
        ("PA PF | DA | DF", "whole", "split"),
        ("PA | PF | DA DF", "split", "whole"),
        ("PA DA | PF DF", "shared", "shared"),
        ("PA | DA | PF DF", "shared", "shared"),
    ],
)
def test_each_phase_of_a_partition_has_the_grid_of_its_structure(
    partition: str, prefill: str, decode: str
) -> None:
    shipped, of = load_space("default"), parse_partition(partition)
    assert shipped.grid(of, Phase.PREFILL) is getattr(shipped, prefill)
    assert shipped.grid(of, Phase.DECODE) is getattr(shipped, decode)
