"""The backend over Horovod: its process sets, its collectives, and the messages in them."""
