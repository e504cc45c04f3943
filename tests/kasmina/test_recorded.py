"""The catalogue that a file was made with: another one is refused in a sentence that says what differs."""

from typing import Any

import pytest

from esper.kasmina import Family, blueprints_of, catalogue_names, check_catalogue
from esper.leyline import DamagedFileError, InputError, OtherCatalogueError
from tests.catalogues import one_more_kind


def check(stored: Any, present: dict[str, list[str]] | None = None) -> None:
    check_catalogue(stored, catalogue_names() if present is None else present, "the file", "make another file")


def test_names_stand_in_the_order_of_their_ids_for_the_families_asked_for() -> None:
    assert set(catalogue_names()) == {"conv1d", "conv2d", "features"}
    with one_more_kind(name="abacus") as kind:
        names = catalogue_names([Family.FEATURES, Family.FEATURES])
        assert list(names) == ["features"]
        assert names["features"][kind.id - 1] == "abacus"
        assert names["features"] == [entry.name for entry in blueprints_of(Family.FEATURES)]
        check(catalogue_names())


def test_a_kind_that_is_missing_added_or_renamed_is_named_with_its_place_and_the_remedy() -> None:
    before, place = catalogue_names(), len(blueprints_of(Family.FEATURES)) + 1
    with one_more_kind():
        longer = catalogue_names()
        with pytest.raises(OtherCatalogueError, match=f"features {place} was nothing, here it is 'shift'"):
            check(before)
    with pytest.raises(OtherCatalogueError) as error:
        check(longer)
    assert str(error.value) == (
        f"the file was made with another catalogue of blueprints (features {place} was 'shift', here it is nothing); "
        "register the same names under the same ids before it is loaded, or make another file"
    )
    swapped = before | {"features": before["features"][::-1]}
    with pytest.raises(OtherCatalogueError, match=r"features 1 was .*, here it is 'norm'.* and \d+ more"):
        check(swapped)


@pytest.mark.parametrize(
    ("stored", "kind", "message"),
    [
        (None, OtherCatalogueError, "older version and does not say with which blueprints it was made; make another"),
        ([], DamagedFileError, "does not list names"),
        ({"features": "norm"}, DamagedFileError, "does not list names"),
        ({"features": [1]}, DamagedFileError, "does not list names"),
    ],
)
def test_a_file_without_a_catalogue_or_with_something_else_gets_a_sentence(
    stored: Any, kind: type[InputError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        check(stored)
