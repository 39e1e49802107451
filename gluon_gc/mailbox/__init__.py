"""Rounds through a mailbox: workers that exchange objects through one bucket or folder."""
