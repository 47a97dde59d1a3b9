"""Records from files that may be rotten or forged."""

from __future__ import annotations

import pytest

from playvirtual.files import parse_json


@pytest.mark.parametrize("text", [r'{"task": "\ud800"}', r'["\ud83d\ud83d"]', r'{"\udfff": 1}'])
def test_half_a_character_is_no_text(text: str) -> None:
    with pytest.raises(ValueError, match="half a character"):
        parse_json(text.encode())


@pytest.mark.parametrize(("text", "value"), [(r'["\ud83d\ude00"]', ["😀"]), (r'["\u00e9", "é"]', ["é", "é"])])
def test_whole_characters_are_read_however_they_are_spelled(text: str, value: list[str]) -> None:
    assert parse_json(text.encode()) == value
