"""The ways of messages: codec, mailbox, broadcast, frames in memory, hub, the line to other machines."""
