"""The lock on the studio's web page, for viser itself lets everybody in, and all that is private to viser.

`access` decides who may come in, `allowed_browser_messages` what a browser may say. `gate` asks both of every
request and message, starts viser behind them, and tries the lock before anybody else can.
"""
