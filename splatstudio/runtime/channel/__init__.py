"""The ways that messages take: codec, mailbox, broadcast, frames in memory, hub, the line to other machines."""
