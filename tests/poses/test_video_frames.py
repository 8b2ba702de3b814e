"""Frames of a video: the sharpest of each stretch, as many as it moves, turned as the phone was held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from textured_rooms import draw_photo, ring, table_with_boxes, write_video

from splatstudio.poses import video
from splatstudio.poses.video import Look, choose, shift_between, write_frames


def silent(share: float) -> None:
    """Hear of progress, and do nothing."""


def test_a_stretch_is_of_equal_motion_and_gives_its_sharpest_frame() -> None:
    looks = [Look(i, i / 15, motion=float(min(i, 10)), sharpness=float(i % 5)) for i in range(40)]
    chosen = choose(looks, 5)
    assert [look.index for look in chosen] == [1, 3, 4, 7, 9], "where it rests, one frame is enough"


def test_a_shift_is_measured_also_where_the_picture_grows() -> None:
    picture = draw_photo(table_with_boxes(), ring(9)[0])[..., 0]
    assert shift_between(picture[:, 20:], picture[:, :-20]) == pytest.approx(20 / 460, abs=0.01)
    assert shift_between(picture, picture) == 0
    nearer = np.asarray(Image.fromarray(picture).resize((528, 396)).crop((24, 18, 504, 378)))
    assert shift_between(picture, nearer) > 0.01


def test_frames_are_as_many_as_asked_for_and_upright(tmp_path: Path) -> None:
    plain = write_video(tmp_path / "plain.mp4", table_with_boxes(), ring(60)[:20])
    turned = rotated(plain, tmp_path / "turned.mp4")
    upright = write_frames(plain, tmp_path / "plain", 6, silent)
    sideways = write_frames(turned, tmp_path / "turned", 6, silent)
    assert [frame.name for frame in upright.frames] == [frame.name for frame in sideways.frames]
    assert len(upright.frames) == 6 and len(list((tmp_path / "plain").iterdir())) == 6
    assert (upright.frames[0].width, upright.frames[0].height) == (480, 360)
    assert (sideways.frames[0].width, sideways.frames[0].height) == (360, 480)
    with Image.open(tmp_path / "plain" / upright.frames[0].name) as one:
        with Image.open(tmp_path / "turned" / upright.frames[0].name) as other:
            back = np.asarray(other.rotate(-90, expand=True)).astype(int)
        assert np.abs(np.asarray(one) - back).mean() < 4


def rotated(file: Path, target: Path) -> Path:
    """Write a video again with the note that it is to be turned by 90 degrees, as phones do."""
    data = bytearray(file.read_bytes())
    # In the header of a track its matrix is 16.16 fixed point: 1 0 0, 0 1 0, 0 0 0x40000000.
    plain = b"".join(v.to_bytes(4, "big", signed=True) for v in (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30))
    turned = b"".join(
        v.to_bytes(4, "big", signed=True) for v in (0, -1 << 16, 0, 1 << 16, 0, 0, 0, 0, 1 << 30)
    )
    place = data.index(plain, data.index(b"tkhd"))
    data[place : place + len(plain)] = turned
    target.write_bytes(data)
    return target


def test_a_video_that_ends_early_is_used_up_to_there(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "whole.mp4", table_with_boxes(), ring(60)[:30])
    cut = tmp_path / "cut.mkv"
    with av.open(str(whole)) as source, av.open(str(cut), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    cut.write_bytes(cut.read_bytes()[: int(0.6 * cut.stat().st_size)])
    written = write_frames(cut, tmp_path / "cut", 5, silent)
    assert len(written.frames) == 5 and written.frames[-1].seconds < 1.5
    assert any("cut off" in note or "damaged" in note for note in written.notes), written.notes


def test_clips_that_are_joined_are_used_to_the_end(tmp_path: Path) -> None:
    clips = [tmp_path / f"{number}.ts" for number in (0, 1)]
    for number, clip in enumerate(clips):
        write_video(clip, table_with_boxes(), ring(60)[20 * number :][:20])
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(clip.read_bytes() for clip in clips))
    written = write_frames(joined, tmp_path / "frames", 12, silent)
    assert not written.notes
    seconds = [frame.seconds for frame in written.frames]
    assert seconds == sorted(seconds) and seconds[-1] - seconds[0] > 2, seconds


def test_times_that_go_back_by_a_frame_add_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = write_video(tmp_path / "a.mp4", table_with_boxes(), ring(60)[:30])
    frames = video._frames

    def shuffled(container: Any) -> Iterator[Any]:
        for number, frame in enumerate(frames(container)):
            assert frame.pts is not None and frame.time_base is not None
            if number % 5 == 0:
                frame.pts -= round(2 / 15 / float(frame.time_base))
            yield frame

    monkeypatch.setattr(video, "_frames", shuffled)
    written = write_frames(file, tmp_path / "frames", 12, silent)
    assert not written.notes and written.frames[-1].seconds < 2.1


@pytest.mark.parametrize("ending", [".mp4", ".mkv"])
def test_sound_that_goes_on_after_the_pictures_cuts_nothing_off(tmp_path: Path, ending: str) -> None:
    whole = write_video(tmp_path / "whole.mp4", table_with_boxes(), ring(60)[:12])
    spoken = tmp_path / f"spoken{ending}"
    with av.open(str(whole)) as source, av.open(str(spoken), "w") as target:
        pictures = target.add_stream_from_template(source.streams.video[0])
        sound = target.add_stream("aac", rate=8000, layout="mono")
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = pictures
                target.mux(packet)
        for start in range(0, 8 * 8000, 1024):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            frame.sample_rate, frame.pts = 8000, start
            target.mux(sound.encode(frame))
        target.mux(sound.encode(None))
    with av.open(str(spoken)) as container:
        assert container.duration is not None and container.duration > 7e6
    assert write_frames(spoken, tmp_path / "frames", 5, silent).notes == ()


def test_what_shows_one_picture_or_nothing_is_refused(tmp_path: Path) -> None:
    still = write_video(tmp_path / "still.mp4", table_with_boxes(), np.stack([ring(9)[0]] * 12))
    with pytest.raises(ValueError, match="nothing moves"):
        write_frames(still, tmp_path / "frames", None, silent)
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(ValueError, match=r"cut off \(Invalid data found when processing input\); copy"):
        write_frames(tmp_path / "text.mp4", tmp_path / "frames", None, silent)
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(ValueError, match="it is empty"):
        write_frames(tmp_path / "empty.mp4", tmp_path / "frames", None, silent)
    with av.open(str(tmp_path / "sound.mp4"), "w") as target:
        sound = target.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        target.mux(sound.encode(frame))
        target.mux(sound.encode(None))
    with pytest.raises(ValueError, match="no pictures, only sound"):
        write_frames(tmp_path / "sound.mp4", tmp_path / "frames", None, silent)
