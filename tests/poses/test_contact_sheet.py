"""The contact sheet: small pictures of what was left out, none where nothing was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from estimations import report_of
from PIL import Image
from textured_rooms import ring, table_with_boxes, write_photos

from splatstudio.poses.contact_sheet import MOST_OF_A_KIND, write_contact_sheet
from splatstudio.poses.records import LeftPhoto, PoseGroup, PoseReport
from splatstudio.poses.store import PoseStore


def report(source: Path, left: list[LeftPhoto], groups: tuple[PoseGroup, ...] = ()) -> PoseReport:
    return report_of(source, left_out=tuple(left), groups=groups)


@pytest.fixture
def store(tmp_path: Path) -> PoseStore:
    write_photos(tmp_path, table_with_boxes(), ring(20)[:2])
    made = PoseStore(tmp_path)
    made.path.mkdir(parents=True)
    return made


def test_pictures_stand_below_their_group_and_reason(store: PoseStore) -> None:
    (store.source / "damaged.jpg").write_bytes(b"no picture")
    names = ("room_000.jpg", "room_001.jpg")
    left = [LeftPhoto("damaged.jpg", "cannot be decoded"), LeftPhoto(names[0], "in a group")]
    write_contact_sheet(store, report(store.source, left, (PoseGroup(1, names),)))
    sheet = np.asarray(Image.open(store.contact_sheet)).astype(int)
    assert sheet.shape == (8 + 2 * (30 + 230), 632, 3), "two sections of a row each"
    assert sheet[90:180, 20:200].std() > 20 and sheet[90:180, 230:400].std() > 20
    assert sheet[90:180, 440:620].std() < 3, "paper"
    blank = sheet[370:410, 20:200]
    assert blank.std(axis=(0, 1)).max() < 3 and abs(blank.mean() - 74) < 4, "a file that is no picture"


def test_of_many_some_are_shown_and_the_number_is_told(store: PoseStore) -> None:
    many = [LeftPhoto(f"{'a long name ' * 9}{number}", "blurred") for number in range(40)]
    write_contact_sheet(store, report(store.source, many))
    height = Image.open(store.contact_sheet).height
    assert height == 8 + 30 + MOST_OF_A_KIND // 3 * 230


def test_where_nothing_was_left_out_the_sheet_of_before_goes(store: PoseStore) -> None:
    store.contact_sheet.write_bytes(b"of before")
    write_contact_sheet(store, report(store.source, []))
    assert not store.contact_sheet.exists()
