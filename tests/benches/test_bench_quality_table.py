"""The standing table of quality: means over the seeds, what counts as fallen, and a run that goes on."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench import quality_table
from bench.quality_table import Score, read, table, what_fell, write

FAST = Score("banana", "fast", 2000, 42, 27.0, 0.75, 0.12, 20_000, 21.0)


def seeds(first: Score, *psnrs: float) -> list[Score]:
    return [replace(first, seed=42 + number, psnr=psnr) for number, psnr in enumerate(psnrs)]


def test_the_table_has_the_means_and_the_spread_of_the_seeds() -> None:
    other = replace(FAST, preset="preview", flip=None)
    lines = table([other, *seeds(FAST, 27.0, 27.2, 27.4)]).splitlines()
    assert lines[2] == "| banana | preview | 2,000 | 1 | 27.00 | 0.00 | 0.750 |  | 20,000 | 21 |"
    assert lines[3] == "| banana | fast | 2,000 | 3 | 27.20 | 0.20 | 0.750 | 0.120 | 20,000 | 21 |"


def test_what_fell_by_more_than_the_seeds_lie_apart_is_told() -> None:
    kept = seeds(FAST, 27.0, 27.2)
    assert what_fell(kept, kept) == []
    assert what_fell(kept, seeds(FAST, 26.95, 27.1)) == [], "by less than the spread"
    assert what_fell(kept, seeds(FAST, 26.8, 27.0)) == ["banana, fast, 2,000 steps: psnr 27.100 -> 26.900"]
    assert what_fell(kept, seeds(FAST, 28.0, 29.0)) == [], "what rose did not fall"
    worse = [replace(score, flip=0.13) for score in kept]
    assert what_fell(kept, worse) == ["banana, fast, 2,000 steps: flip 0.120 -> 0.130"]
    assert what_fell(worse, kept) == [], "of FLIP less is better"


def test_only_what_both_measured_is_compared() -> None:
    kept = seeds(FAST, 27.0, 20.0)
    assert what_fell(kept, [replace(FAST, seed=44, psnr=10.0)]) == [], "another seed"
    assert what_fell(kept, [FAST]) == [], "the seed that both have"
    assert what_fell(kept, [replace(FAST, steps=7000, psnr=10.0)]) == []
    assert what_fell([replace(FAST, flip=None)], [FAST]) == []


def test_what_is_measured_already_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[tuple[str, str, int, int]] = []

    def measured(scene: str, preset: str, steps: int, seed: int) -> Score:
        trained.append((scene, preset, steps, seed))
        if len(trained) == 3:
            raise KeyboardInterrupt
        return replace(FAST, scene=scene, preset=preset, seed=seed, psnr=27.0 - len(trained))

    results, kept = tmp_path / "results.json", tmp_path / "kept.json"
    words = ["quality_table.py", "--scenes", "banana", "--presets", "fast", "mcmc", "--seeds", "42", "43"]
    monkeypatch.setattr(sys, "argv", [*words, "--results", str(results), "--keep"])
    monkeypatch.setattr(quality_table, "measured", measured)
    monkeypatch.setattr(quality_table, "KEPT", kept)
    with pytest.raises(KeyboardInterrupt):
        quality_table.main()
    assert trained == [
        ("banana", "fast", 2000, 42),
        ("banana", "mcmc", 2000, 42),
        ("banana", "fast", 2000, 43),
    ]
    assert len(read(results)) == 2 and not kept.exists()
    assert quality_table.main() == 0 and len(trained) == 5, "the third once more, and the fourth"
    assert "Nothing fell." in capsys.readouterr().out and read(kept) == read(results)
    write(kept, [replace(score, ssim=0.9) for score in read(results)])
    monkeypatch.setattr(sys, "argv", [*words, "--results", str(results)])
    assert quality_table.main() == 1 and len(trained) == 5
    assert "Fell: banana, fast, 2,000 steps: ssim 0.900 -> 0.750" in capsys.readouterr().out
