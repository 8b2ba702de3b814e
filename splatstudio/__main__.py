"""What `splatstudio` and `python -m splatstudio` run: the command line, loaded where Ctrl-C is caught."""

from __future__ import annotations

import atexit
import gc
import sys

from splatstudio.operating_system import open_standard_streams
from splatstudio.runtime.stop_signals import StopSignal, end_by_signals


def main() -> None:
    """Run the command line; Ctrl-C ends it, also while it loads, with exit code 130 and no traceback.

    SIGTERM and SIGHUP do the same, with the codes 143 and 129.
    """
    # At the end Python looks through all that torch has loaded for what nobody needs: a third of a second.
    atexit.register(gc.freeze)
    try:
        open_standard_streams()
        end_by_signals()
        from splatstudio.cli.overview import answer
        from splatstudio.cli.standard_output import tell

        if (told := answer(sys.argv[1:])) is not None:
            sys.exit(tell(told))
        from splatstudio.cli import main as cli

        cli.main()
    except StopSignal as told:
        sys.exit(told.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
