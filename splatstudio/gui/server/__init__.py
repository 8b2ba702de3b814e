"""The lock on the studio's web page: viser itself lets everybody in and believes everything it is sent.

`access` decides who may come in, `messages` and `values` what a browser may say, `connection` asks both of
every request and message, `server` starts viser behind them and tries the lock before anybody else can.
"""

from splatstudio.gui.server.connection import Gate
from splatstudio.gui.server.gated_server import GatedServer, open_server
from splatstudio.gui.server.limits import GateLimits

__all__ = ["Gate", "GateLimits", "GatedServer", "open_server"]
