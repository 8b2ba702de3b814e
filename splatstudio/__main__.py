"""What `splatstudio` and `python -m splatstudio` run: the command line, loaded where Ctrl-C is caught."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it, also while it loads, with exit code 130 and no traceback."""
    try:
        from splatstudio.cli import main as cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
