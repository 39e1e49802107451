"""Starts and watches the processes of a cluster; needs no framework."""
