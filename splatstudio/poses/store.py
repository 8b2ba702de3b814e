"""The folder in which an estimation keeps all that it makes, laid out as a scene of COLMAP's."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from splatstudio.error_text import first_line
from splatstudio.files.outputs import make_folder, open_output
from splatstudio.operating_system import NO_LOCKS, remove_locked, take_lock
from splatstudio.poses.records import Manifest, PoseReport, read_record
from splatstudio.scene.layout import REPLACED, STORE, estimated_poses

PAIR_FACTOR = 2**31 - 1  # COLMAP's number of a pair is the smaller image's times this, plus the larger's


class PoseStore:
    """The files of one estimation.

    `images` holds the pictures: links to the user's, and those that had to be made, as frames of videos;
    `masks` their masks, `database` features and matches, `sparse` the models, the one that is used as 0.
    """

    def __init__(self, source: Path) -> None:
        """Name the files of an estimation from `source`, a folder of photos or a video."""
        self.source = source
        self.path = estimated_poses(source)
        self.images = self.path / "images"
        self.masks = self.path / "masks"
        self.database = self.path / "database.db"
        self.sparse = self.path / "sparse"
        self.replaced = self.path / REPLACED  # for a moment, the models in whose place others are put
        self.mapping = self.path / "mapping"  # models that are being made
        self.growing_file = self.path / "growing.npz"  # the one that grows just now, see `growing`
        self.wanted_file = self.path / "so-far.wanted"  # asks the mapping to keep what there is
        self.manifest_file = self.path / "manifest.json"
        self.contact_sheet = self.path / "contact-sheet.jpg"  # of what is left out, where that is something
        self.report_file = self.path / "report.json"

    @classmethod
    def of_model(cls, model: Path | None) -> PoseStore | None:
        """Return the store that holds a COLMAP model, None where it is in none."""
        if model is None:
            return None
        store = model.parent.parent
        if store.parent.name != STORE:
            return None
        folder = store.parent.parent
        return cls(folder if store.name == "poses" else folder / store.name)

    def manifest(self) -> Manifest | None:
        """Return the inputs as they were last, None where there are none yet."""
        return read_record(self.manifest_file, Manifest)

    @property
    def has_poses(self) -> bool:
        """Return whether poses have been estimated."""
        return (self.sparse / "0" / "images.bin").exists()

    def report(self) -> PoseReport | None:
        """Return the report of the poses that are there, None where there are none."""
        return read_record(self.report_file, PoseReport) if self.has_poses else None

    def drop_damaged_database(self) -> None:
        """Remove a database that cannot be read, as after a crash of the machine: it is made again."""
        if not self.database.exists():
            return
        try:
            with closing(sqlite3.connect(self.database)) as database:
                for table in ("images", "keypoints", "descriptors", "matches", "two_view_geometries"):
                    database.execute(f"SELECT count(*) FROM {table}").fetchone()
        except sqlite3.DatabaseError:
            for file in self.path.glob(f"{self.database.name}*"):
                file.unlink()

    def forget(self, names: Collection[str]) -> None:
        """Remove photos with their features and matches from the database, where it is there."""
        if not names or not self.database.exists():
            return
        database = sqlite3.connect(self.database)
        with closing(database), database:
            known = dict(database.execute("SELECT name, image_id FROM images"))
            for image in [known[name] for name in names if name in known]:
                for table in ("keypoints", "descriptors", "images"):
                    database.execute(f"DELETE FROM {table} WHERE image_id = ?", (image,))
                database.execute("DELETE FROM pose_priors WHERE corr_data_id = ?", (image,))
                frames = database.execute("SELECT frame_id FROM frame_data WHERE data_id = ?", (image,))
                for (frame,) in frames.fetchall():
                    database.execute("DELETE FROM frame_data WHERE frame_id = ?", (frame,))
                    database.execute("DELETE FROM frames WHERE frame_id = ?", (frame,))
                for table in ("matches", "two_view_geometries"):
                    pair = f"pair_id / {PAIR_FACTOR} = ? OR pair_id % {PAIR_FACTOR} = ?"
                    database.execute(f"DELETE FROM {table} WHERE {pair}", (image, image))

    def remove(self) -> None:
        """Remove everything, and the folder around it where nothing else is in there."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder and keep other processes out of it while something is made there.

        An input that is refused (ValueError) leaves nothing of a folder that was made for it; Ctrl-C, a crash
        and a machine without room leave the finished stages, and so does what follows on them. Raises
        ValueError where another process is at it, or where the folder cannot be made.
        """
        is_new = not self.path.exists()
        lock = self._locked()
        try:
            yield
        except ValueError:
            if is_new:
                self.remove()
            raise
        finally:
            remove_locked(self.path / "lock", lock, at_its_place=True)

    def _locked(self) -> int:
        try:
            make_folder(self.path)
            lock = open_output(self.path / "lock", os.O_RDWR)
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be made ({error.strerror or first_line(error)}), and poses are kept"
                " beside the photos: copy these to a folder that may be written to, and name that"
            ) from error
        try:
            take_lock(lock)
        except BlockingIOError:
            os.close(lock)
            raise ValueError(
                f"another process is estimating the poses of {self.source}: wait for it, or end it"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(lock)
                raise
        return lock


def fingerprint(manifest: Manifest) -> str:
    """Return a name for the inputs that changes with any of them."""
    return sha256(msgspec.json.encode(manifest)).hexdigest()[:16]
