"""bpslaunch: starts the processes of a cluster on this machine, and supervises them."""
