"""What Python loads first where this folder is on PYTHONPATH: splatstudio is told that it runs on Windows."""

import windows_rules

windows_rules.install()
